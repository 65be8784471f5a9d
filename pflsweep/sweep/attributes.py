"""The attributes that commands and workers store with a slot's trial in Optuna.

Their names stand in databases of running sweeps, and are not changed.
"""

SLOT = "slot"  # which slot of the plan
POINT = "point"  # of a final trial: its point as JSON
WORKER = "worker"  # name of the worker that has its lease
RECORD = "record"  # the folder of its record, and the rounds of which training begins
ROUND = "round"  # (rounds done, rounds in all) of the seed that trains now, as of the last heartbeat
ROUNDS_REACHED = "reached"  # over all seeds of the slot
ROUNDS_BEFORE = "before"  # reached by the slot's former trial, which this one continues
RESULT = "result"  # of a done trial: identities and values
ERROR = "error"  # why it failed or diverged
# What kind of error it was, each True or absent
INPUT = "input"
DIVERGED = "diverged"
NO_WINNER = "no_winner"
TRACE = "trace"  # the traceback of a bug
DEATH = "death"  # of a trial whose worker died: the end of its process, and the rounds in its record
RETRIED = "retried"  # True: deaths before this trial do not count
REPLACES = "anew"  # number of the done trial that this one replaces
DUPLICATE = "duplicate"  # True: two commands enqueued the slot at once, and this trial does not count
