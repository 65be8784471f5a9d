"""Draw docs/sweep.svg: what a sweep passes on, from the command to the report.

python -m tools.sweep_picture
"""

from pathlib import Path

from tools.svg import BLUE, FAINT, GREEN, YELLOW, arrow, box, head, text

PICTURE = Path(__file__).parents[1] / "docs" / "sweep.svg"
HEIGHT, BOX = 300, 130


def label(x: float, y: float, said: str, anchor: str = "middle") -> str:
    """Return what an arrow passes on."""
    return text(x, y, said, size=13, fill=FAINT, anchor=anchor)


def picture() -> str:
    """Return the picture as SVG."""
    top, bottom, side = 75, 215, BOX / 2
    command, plan, queue, workers, records = 85, 280, 480, 690, 905
    parts = [
        head(HEIGHT, "A sweep: command, plan, queue, workers, records, report"),
        *box(command, top, BOX, GREEN, "command", "sweep/sweeper.py"),
        *box(plan, top, BOX, GREEN, "plan", "sweep/planner.py"),
        *box(queue, top, BOX, YELLOW, "queue", "sweep/queue.py", "Optuna's storage"),
        *box(workers, top, BOX, GREEN, "workers", "sweep/worker.py"),
        *box(records, top, BOX, YELLOW, "records", "runs/ID/"),
        *box(queue, bottom, BOX, YELLOW, "ledger", "runs/sweeps/ID.json"),
        *box(workers, bottom, BOX, BLUE, "MLflow", "tracking/"),
        *box(records, bottom, BOX, GREEN, "report", "report/"),
        arrow((command + side, top), (plan - side, top)),
        label((command + plan) / 2, top - 10, "configs"),
        arrow((plan + side, top), (queue - side, top)),
        label((plan + queue) / 2, top - 10, "trials"),
        arrow((queue + side, top - 12), (workers - side, top - 12)),
        label((queue + workers) / 2, top - 22, "lease"),
        arrow((workers - side, top + 14), (queue + side, top + 14)),
        label((queue + workers) / 2, top + 32, "value, state"),
        arrow((workers + side, top), (records - side, top)),
        label((workers + records) / 2, top - 10, "rounds,"),
        label((workers + records) / 2, top + 20, "checkpoint"),
        arrow((queue, top + 33), (queue, bottom - 33)),
        label(queue + 8, (top + bottom) / 2 + 4, "who won, which trials", "start"),
        arrow((workers, top + 33), (workers, bottom - 33)),
        label(workers + 8, (top + bottom) / 2 + 4, "metrics", "start"),
        arrow((records, top + 33), (records, bottom - 33)),
        arrow((queue, bottom + 33), (queue, bottom + 58), (records, bottom + 58), (records, bottom + 33)),
        "</svg>",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
