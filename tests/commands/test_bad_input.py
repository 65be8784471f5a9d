"""Bad input of every kind, by the command itself: one clear paragraph, exit code 2, and no files left behind."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pflsweep.commands.main import main

Files = dict[str, str | bytes]
SWEEP = ["-m", "sweep=x.yaml", "plan=true"]
GOOD = "settings:\n  a: partition=iid\nmethods:\n  f: algorithm=fedavg\n"


def refused(argv: list[str], files: Files, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """Assert that a command ends with one paragraph with these words, and leaves the working directory as it was."""
    for name, content in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = sorted(Path().rglob("*"))
    code = main(argv)
    out, err = capfd.readouterr()
    paragraph = err.strip()
    assert (code, out) == (2, ""), paragraph
    assert re.match(r"pflsweep: ", paragraph)
    assert "\n" not in paragraph
    assert [word for word in words if word not in paragraph] == [], paragraph
    assert [word for word in NEVER if word in paragraph] == [], paragraph
    written = [path for path in Path().rglob("*") if path not in before and "__pycache__" not in str(path)]
    assert written == []


# Words that reveal the inside of a library or program
NEVER = ["Traceback", "LexerNoViable", "mismatched input", "extraneous input", "full_key", "object at 0x", "alloc_cpu"]

# Inputs for which earlier versions gave an unclear message or none
GIVEN = [
    ("=3", ["'=3' has no key", "train.lr=0.1"]),
    ("train.batch=1e9", ["train.batch is 1000000000.0", "a whole number at least 1", "Write 1000000000."]),
    ("train.rounds=1e12", ["train.rounds is 1000000000000.0", "at most 10000000"]),
    ("train.rounds=99999999999999999999", ["train.rounds is 99999999999999999999", "at most 10000000"]),
    ("train.rounds=10000000 train.epochs=100000", ["10000000", "100000", "21 years", "Use fewer"]),
    ("train.batch=99999999999999999999", ["train.batch", "Whole numbers go up to 1000000000 here"]),
    ("seed=99999999999999999999", ["seed is 9999", "at most 9223372036854775807"]),
    (
        "model.hidden=[1000000,1000000]",
        ["model=mlp has 1,000,076,000,010 parameters", "model.hidden=[1000000,1000000]", "4.0 TB", "12.0 TB", "memory"],
    ),
    ("train.ünï=3", ["'train.ünï=3'", "ASCII letters", "--config-dir"]),
    ("algorithm=路径", ["there is no algorithm '路径'", "fedavg"]),
    ("dataset=npz dataset.path=路径/x.npz", ["dataset.path is 路径/x.npz: there is no such file in /", "路径."]),
    ("dataset=路 --config-dir=路径", ["There is no folder '路径'"]),
    ("train.lr_of=last_turn algorithm=scaffold", ["algorithm=scaffold takes one learning rate", "It goes with apfl"]),
    ("privacy=dp_sgd privacy.read_after=0", ["privacy.read_after is 0", "above 0 or null"]),
    ("model=nfresnet18 model.alpha=-1", ["model.alpha is -1", "above 0 and at most 10"]),
    ("hydra.sweep.dir=x", ["hydra.sweep.dir=x", "paths.runs=FOLDER"]),
    ("hydra.run.dir=x", ["hydra.run.dir=x", "paths.runs=FOLDER"]),
    ("+hydra.sweeper.params={a:1}", ["+hydra.sweeper.params={a:1}", "train.lr=0.1,0.01"]),
    ("hydra.job.chdir=true", ["hydra.job.chdir=true", "working directory stays"]),
    ("hydra/launcher=joblib", ["hydra/launcher=joblib", "add -m"]),
    ("hydra.launcher.n_jobs=2", ["hydra.launcher.n_jobs=2", "hydra/launcher=joblib"]),
    ("hydra.mode=MULTIRUN", ["hydra.mode=MULTIRUN", "-m"]),
    ("hydra.output_subdir=x", ["hydra.output_subdir=x", "config.yaml"]),
    ("hydra.runtime.cwd=x", ["hydra.runtime.cwd=x", "no effect"]),
    ("hydra={}", ["hydra={}", "no effect"]),
    ("-m hydra.sweep.dir=x plan=true", ["hydra.sweep.dir=x", "paths.runs=FOLDER"]),
    ("-m hydra.job.chdir=true hydra/launcher=joblib plan=true", ["hydra.job.chdir=true", "working directory"]),
    ("train.lr=interval(0,1)", ["train.lr=interval(0,1)", "no values of its own", "range(1,5)", "tune=random"]),
    ("-m train.lr=interval(0,1) plan=true", ["train.lr=interval(0,1)", "no values of its own", "sweeps/space"]),
    ("-m seed=range(0,3,0) plan=true", ["seed=range(0,3,0) has no values", "below stop"]),
    ("-m seed=range(3,0) plan=true", ["seed=range(3,0) has no values"]),
    ("-m seed=range(0,1000000000) plan=true", ["seed=range(0,1000000000)", "more than 10000"]),
    ("-m train.lr=glob(*) plan=true", ["train.lr=glob(*)", "algorithm=glob(fedp*)"]),
    ("algorithm=glob('fedp*')", ["algorithm=glob('fedp*') has several values", "add -m"]),
    ("seed=range(0,3)", ["seed=range(0,3) has several values", "add -m"]),
    ("train.workers=1000", ["train.workers is 1000", "cores", "more than", "10 clients", "train.workers=auto"]),
]
GRAMMAR = [
    ("==", ["'==' has no key"]),
    ("+=3", ["'+=3' has no key"]),
    ("~=", ["'~=' has no key"]),
    ("'=3'", ["''=3'' cannot be read as key=value"]),
    ("+", ["'+' cannot be read as key=value", "no '='"]),
    ("train..lr=1", ["'train..lr' is not a key"]),
    (".train.lr=1", ["'.train.lr' is not a key"]),
    ("train.=1", ["'train.' is not a key"]),
    ("train=lr=1", ["'train=lr=1'", "a second '='"]),
    ("train.lr==3", ["a second '='"]),
    ("paths.runs=a=b", ["a second '='", "'paths.runs=\"a=b\"'"]),
    ("train.lr=', ", ["the quote ' has no partner"]),
    ('train.lr="a', ['the quote " has no partner']),
    ("paths.runs=a'b", ["the quote ' has no partner"]),
    ("model.hidden=[200", ["'[' and ']' do not pair"]),
    ("model.hidden=200]", ["'[' and ']' do not pair"]),
    ("paths.runs={a", ["'{' and '}' do not pair"]),
    ("paths.runs=a(b", ["'(' and ')' do not pair"]),
    ("train.lr=${", ["'{' and '}' do not pair"]),
    ("-m algorithm=, plan=true", ["nothing beside a comma"]),
    ("-m algorithm=fedavg, plan=true", ["nothing beside a comma"]),
    ("-m train.lr=0.1,,0.2 plan=true", ["nothing beside a comma"]),
    ("-m fedavg", ["'fedavg' cannot be read as key=value: there is no '='"]),
    ("paths.runs=\udcff", ["is not text in UTF-8"]),
]
KEYS = [
    ("lr=0.1", ["Unknown config key 'lr'", "Did you mean 'train.lr'"]),
    ("a=", ["Unknown config key 'a'"]),
    ("train.learning_rate=0.1", ["Did you mean 'train.lr'"]),
    ("batch_size=10", ["Unknown config key 'batch_size'. Did you mean 'train.batch'"]),
    ("num_clients=10", ["Did you mean 'partition.clients'"]),
    ("++x=1", ["Unknown config key 'x'"]),
    ("+new.key=1", ["Unknown config key 'new.key'"]),
    ("+train.new=1", ["Unknown config key 'train.new'", "'train' has: rounds"]),
    ("+data.x.y=1", ["Unknown config key 'data.x.y'"]),
    ("train.lr.x=1", ["Unknown config key 'train.lr.x'", "Did you mean 'train.lr'"]),
    ("train.lr={a:1}", ["Unknown config key 'train.lr.a'"]),
    ("+train.lr=3", ["+train.lr", "Write train.lr=..., without the +"]),
    ("+algorithm=pgfed", ["+algorithm=pgfed", "Write algorithm=pgfed, without the +"]),
    ("+model=cnn", ["Write model=cnn, without the +"]),
    ("algorithm@x=fedavg", ["Unknown config key 'algorithm@x'"]),
    ("~nothing", ["~nothing takes a key away", "Unknown config key 'nothing'"]),
    ("~train.lr=5", ["The value of 'train.lr' is 0.05 and not 5"]),
    ("~train", ["train has to be one option's name, and cannot be left out: train=NAME"]),
    ("~algorithm", ["algorithm has to be one option's name"]),
    ("~seed", ["seed is missing", "Its default is 0"]),
    ("~data", ["data.root is missing"]),
    ("~tune", ["~tune is a key of a sweep"]),
    ("workers=3", ["workers=3 is a key of a sweep"]),
    ("setting=pgfed", ["+setting=NAME"]),
    ("+setting=foo", ["there is no setting 'foo'"]),
    (
        "+setting=pgfed partition=shards",
        ["has: seed, clients", "not for this one: ~partition.alpha ~partition.least."],
    ),
    ("+setting=3", ["+setting=3: 'setting' has to be set to an option's name"]),
    ("algorithm=3", ["algorithm=3: 'algorithm' has to be set to an option's name", "dataset=digits"]),
    ("algorithm=null", ["algorithm=null: 'algorithm' has to be set to an option's name"]),
    ("ala=true", ["ala=true: 'ala' has to be set to an option's name"]),
    ("train=null", ["train=null: 'train' has to be set to an option's name"]),
    ("algorithm=", ["there is no algorithm ''"]),
    ("algorithm=FedAvg", ["Did you mean 'fedavg'"]),
    ("algorithm=[fedavg]", ["algorithm has to be one option's name"]),
    ("algorithm={a:1}", ["'algorithm' is a config group"]),
    ("algorithm=fedavg.yaml", ["algorithm=fedavg.yaml", "without its folder and .yaml: fedavg"]),
    ("algorithm=../algorithm/fedavg", ["without its folder and .yaml: fedavg"]),
    ("train=[]", ["train has to be one option's name"]),
    ("paths=null", ["'paths' is a group of keys"]),
    ("model.hidden={}", ["model.hidden={}", "model.hidden=[1,2]", "not a mapping"]),
    ("train=???", ["You must specify 'train'"]),
    ("paths.runs=???", ["paths.runs is '???'", "missing"]),
    ("seed=???", ["seed is '???'", "missing"]),
    ("dataset=npz dataset.path=???", ["dataset.path is '???'"]),
]
VALUES = [
    ("train.lr=", ["train.lr is ''", "a number above 0"]),
    ("train.lr=null", ["train.lr is null", "a number above 0"]),
    ("train.lr={}", ["train.lr is {}"]),
    ("train.lr=[0.1]", ["train.lr is [0.1]"]),
    ("train.lr='0.1'", ["train.lr is '0.1'", "Write 0.1."]),
    ("train.lr=true", ["train.lr is true"]),
    ("train.lr=0.1.2", ["train.lr is '0.1.2'"]),
    ("train.lr=- 1", ["train.lr is '- 1'"]),
    ("train.lr=.1e-400", ["train.lr is 0.0"]),
    ("train.lr=1e400", ["train.lr is inf"]),
    ("train.lr=1" + 400 * "0", ["train.lr is 1000", "below 1e+38"]),
    ("algorithm=fedprox algorithm.mu=1" + 400 * "0", ["algorithm.mu is 1000", "a number at least 0"]),
    ("train.lr=1,2", ["train.lr=1,2 has several values", "add -m"]),
    ("train.rounds=0", ["train.rounds is 0", "at least 1"]),
    ("train.rounds=1e3", ["Write 1000."]),
    ("train.rounds='5'", ["train.rounds is '5'", "Write 5."]),
    ("train.rounds=ten", ["train.rounds is 'ten'"]),
    ("train.rounds={}", ["train.rounds is {}"]),
    ("train.rounds=[1]", ["train.rounds is [1]"]),
    ("train.epochs=1000000", ["train.epochs is 1000000", "at most 100000"]),
    ("train.lr_decay=1e30", ["train.lr_decay 1e+30", "learning rate would be about 1e", "nearer to 1"]),
    ("train.lr_decay=1e-30", ["train.lr_decay 1e-30", "learning rate would be about 1e-", "nearer to 1"]),
    ("train.weight_decay=1e39", ["train.weight_decay is 1e+39", "below 1e+38"]),
    ("train.eval_batch=99999999999999999999", ["train.eval_batch", "Whole numbers go up to 1000000000"]),
    ("train.chunk=9999999999999", ["train.chunk", "Whole numbers go up to 1000000000"]),
    ("train.workers=0", ["train.workers is 0"]),
    ("train.workers=two", ["train.workers is 'two'", "or auto"]),
    ("train.workers=1.5", ["train.workers is 1.5"]),
    ("train.threads=1025", ["train.threads is 1025", "at most 1024"]),
    ("train.compile=true", ["Unknown config key 'train.compile'"]),
    ("train.precision=fp16", ["train.precision is 'fp16'", "Did you mean 'bf16'"]),
    ("train.chunk=true", ["train.chunk is true: it must be"]),
    ("train.sampling=foo", ["train.sampling is 'foo'", "uniform, size, dirichlet"]),
    ("seed=", ["seed is ''"]),
    ("seed=[0,1]", ["seed is [0,1]"]),
    ("seed=1e2", ["Write 100."]),
    ("device=cuda:0", ["Did you mean 'cuda'"]),
    ("device=[cpu]", ["device is [cpu]"]),
    ("data.root=''", ["data.root is ''", "not empty or null"]),
    ("data.limit=1", ["partition.clients is 20", "only 1 samples"]),
    ("data.limit=99999999999999999999", ["data.limit", "Whole numbers go up to 1000000000"]),
    ("data.new=20", ["data.new is 20", "below the 20 clients"]),
    ("data.new_epochs=1000000", ["data.new_epochs is 1000000", "at most 100000"]),
    ("data.targets=[own]", ["data.targets is [own]"]),
    ("data.download=maybe", ["data.download is 'maybe'", "true or false"]),
    ("paths.runs=null", ["paths.runs is null", "text that is not empty"]),
    ("paths.runs=~/x", ["paths.runs is '~/x'", "$HOME"]),
    ("paths.runs=/dev/null/x", ["/dev/null/x", "cannot be written to", "paths.runs"]),
    ("checkpoint.every=inf", ["checkpoint.every is inf"]),
    ("checkpoint.keep=yes", ["checkpoint.keep is 'yes'"]),
    ("partition.clients=0", ["partition.clients is 0"]),
    ("partition.clients=2.5", ["partition.clients is 2.5"]),
    ("partition.clients=20.0", ["Write 20."]),
    ("partition.alpha=null", ["partition.alpha is null"]),
    ("partition.least=100000", ["partition.least is 100000", "1 to 89"]),
    ("partition.clients=500", ["partition.least is 40: it must be 1 to 3", "at most 44 clients (partition.clients)"]),
    ("partition=from_file partition.clients=5", ["says itself how many clients there are. It has: seed, path."]),
    ("partition=natural", ["partition=natural", "digits has not"]),
    ("model.hidden=null", ["model.hidden is null", "a list"]),
    ("model.hidden=[[1]]", ["model.hidden is [[1]]"]),
    ("model.hidden=[1e3]", ["model.hidden is [1000.0]", "whole number"]),
    ("model.hidden=[99999999999999999999]", ["model.hidden", "Whole numbers go up to 1000000000"]),
    ("model=cnn", ["16x16", "model=mlp"]),
    ("model=torchvision model.name=null", ["model.name is null"]),
    ("model._target_=os.system", ["its keys do not fit os.system"]),
    ("model._target_=pflsweep.models.mlp", ["pflsweep.models.mlp is not a function", "a module"]),
    ("model._target_=pflsweep.models.mlp.PI", ["no 'PI'"]),
    ("model._target_=sys.maxsize", ["sys.maxsize is not a function", "type int"]),
    ("dataset.mean=[]", ["dataset.mean is []", "1 value"]),
    ("dataset.std=[0]", ["dataset.std is [0.0]", "greater than 0"]),
    ("dataset=npz", ["dataset.path=FILE"]),
    ("dataset=npz dataset.path=/dev/zero", ["dataset.path is /dev/zero"]),
    ("dataset=csv dataset.path=/etc", ["dataset.path is /etc, which is a folder: dataset=csv reads a file."]),
    ("dataset=mnist data.root=/nowhere", ["not found in /nowhere/MNIST/raw", "data.download=true"]),
    ("algorithm=fedprox algorithm.mu=[]", ["algorithm.mu is []"]),
    ("algorithm=fedprox algorithm.task=1", ["Unknown config key 'algorithm.task'"]),
    ("algorithm=fedper algorithm.layers=9", ["algorithm.layers is 9", "3 blocks"]),
    ("algorithm._target_=os.path", ["os.path is not a method"]),
    ("study=trajectory study.client=99", ["study.client is 99"]),
    ("train.lr=${train.lr}", ["train.lr cannot be resolved", "Recursive"]),
    ("train.lr=${train.momentum} train.momentum=${train.lr}", ["train.lr cannot be resolved", "Recursive"]),
    ("train.lr=${oc.env:NOT_SET}", ["train.lr cannot be resolved", "NOT_SET"]),
    ("train.lr=${foo:1}", ["train.lr cannot be resolved", "foo"]),
]
FLAGS = [
    ("--foo=3", ["Unknown flag '--foo'"]),
    ("--config-dir", ["--config-dir", "expected one argument"]),
    ("--config-dir=", ["--config-dir is empty"]),
    ("--config-dir=/etc/hostname", ["There is no folder '/etc/hostname'"]),
    ("--config-name=foo", ["--config-name", "--config-dir FOLDER"]),
    ("--config-path=/x", ["--config-path", "--config-dir FOLDER"]),
    ("--package=x", ["--package=x", "--cfg job"]),
    ("--shell-completion", ["--shell-completion", "install=SHELL"]),
    ("--multirun=3", ["--multirun"]),
    ("--run -m", ["Only one of --run, --multirun"]),
    ("--resolve", ["--resolve", "--cfg"]),
]
SWEEPS = [
    ("foo=1,2", ["Unknown config key 'foo'"]),
    ("seed=a,b", ["seed is 'a'"]),
    ("seed=0,-1", ["seed is -1"]),
    ("seed=null,1", ["seed is null"]),
    ("train.lr=0.1,fast", ["train.lr is 'fast'", "in the trial"]),
    ("train.lr=nan,1", ["train.lr is nan"]),
    ("train.batch=range(1.5)", ["train.batch is 0.0"]),
    ("model.hidden=[1],2", ["model.hidden is 2"]),
    ("algorithm=foo,fedavg", ["there is no algorithm 'foo'"]),
    ("algorithm=fedprox,local algorithm.mu=1", ["algorithm.mu is not a key of every option"]),
    ("dataset=digits,nothing", ["there is no dataset 'nothing'"]),
    ("~train.lr", ["train.lr is missing"]),
    (
        "train.sampling_alpha=0.1,1",
        ["train.sampling_alpha has several values, and no effect", "needs: train.sampling=dirichlet"],
    ),
    ("train.epochs=1,2 train.steps=3", ["train.epochs has several values, and no effect beside the other keys"]),
    ("=3", ["'=3' has no key"]),
    ("train.lr=${x},1", ["train.lr cannot be resolved", "'x' not found"]),
    ("hydra/launcher=foo", ["there is no hydra/launcher 'foo'", "joblib"]),
    ("hydra/launcher=joblib,basic", ["Sweeping over Hydra's configuration is not supported"]),
    ("hydra/sweeper=optuna", ["hydra/sweeper=optuna", "a sweeper of its own"]),
    ("only=[a]", ["sweep=pgfed/table1"]),
    ("plan=maybe", ["plan is 'maybe'"]),
    ("scale=big", ["No scale 'big'", "small"]),
    ("sweep=", ["No sweep ''"]),
    ("sweep=3", ["sweep is 3"]),
    ("sweep=x.yaml", ["'x.yaml'", "not there"]),
    ("sweep=pgfed/table9", ["No sweep 'pgfed/table9'", "Did you mean 'pgfed/table7'"]),
    ("sweep=pgfed/table1,pgfed/table2", ["several values"]),
    ("sweep=pgfed/table1 only=x", ["only is 'x'", "a list"]),
    ("sweep=pgfed/table1 only={a:1}", ["only={a:1}", "only=[1,2]"]),
    ("sweep=pgfed/table1 only=[x]", ["'x' is not a row or column"]),
    ("sweep=pgfed/table1 algorithm=fedavg", ["'algorithm=fedavg' beside them"]),
    ("tune=foo", ["there is no tune 'foo'"]),
    ("tune=null", ["tune=null: 'tune' has to be set to an option's name"]),
    ("tune=random tune.points=99999999999999999999", ["tune.points is 9999", "at most 100000"]),
    ("tune=random tune.points=2 tune.seed=99999999999", ["tune.seed is 9999", "at most 4294967295"]),
    ("tune=grid tune.split=train", ["tune.split is 'train'", "validation, test"]),
    ("tune.points=3", ["nothing is searched"]),
    ("algorithm=fedprox algorithm.mu=0.1 train.lr=0.1 tune=grid", ["tune=grid has nothing to search"]),
    ("workers.count=1.5", ["workers.count is 1.5"]),
    ("workers.backend=foo", ["workers.backend is 'foo'", "processes, dask"]),
    ("workers=null", ["'workers' is a group of keys"]),
]
SWEEP_FILES = [
    ("", ["x.yaml: 'settings' has to name at least one"]),
    ("3", ["x.yaml has to be lines of `key: value`"]),
    ("settings:\n\ta: b\n", ["x.yaml, line 2", "spaces, not by tabs"]),
    ("settings: {a: partition=iid", ["x.yaml, line 1", "cannot be read as YAML"]),
    ("a: 1\na: 2", ["x.yaml, line 2", "duplicate key a"]),
    ("!!python/object/apply:os.system ['true']", ["x.yaml, line 1", "cannot be read as YAML"]),
    ("\x00", ["x.yaml", "cannot be read as YAML"]),
    (b"\xff\xfe\x00", ["x.yaml cannot be read"]),
    ("{" * 300, ["x.yaml, line 1", "cannot be read as YAML"]),
    (GOOD + "seedz: [0]\n", ["unknown key 'seedz'", "Did you mean 'seeds'"]),
    (GOOD + "seeds: [0,0]\n", ["'seeds' is [0, 0]", "twice", "each seed once"]),
    (GOOD + "seeds: [99999999999999999999]\n", ["'seeds' is [99999999999999999999]", "from 0 to 9223372036854775807"]),
    (GOOD + "seeds: [1.0]\n", ["'seeds' is [1.0]", "whole numbers"]),
    (GOOD + "seeds: null\n", ["'seeds'", "whole numbers"]),
    (GOOD + "search: tune=gird\n", ["there is no tune 'gird'", "sweep=x.yaml", "tune=gird"]),
    (GOOD + "search: tune.points=0\n", ["tune.points is 0", "sweep=x.yaml"]),
    (GOOD + "search: [tune=grid]\n", ["search is ['tune=grid']", "text of overrides"]),
    (GOOD + "search: train.lr=3\n", ["'train.lr=3' is not of the group tune"]),
    (GOOD + "space: {f: null}\nsearch: tune=grid\n", ["tune=grid has nothing to search"]),
    (GOOD + "space: {g: {}}\n", ["space.g is for no method of this file"]),
    ("settings: {a: partition=iid}\nmethods: {5: algorithm=fedavg}\nspace: {5: a}\n", ["space.5", "'a'"]),
    (GOOD + "space: {f: {train.lrr: {grid: [1]}}}\nsearch: tune=grid\n", ["'train.lrr'", "x.yaml", "'train.lr'"]),
    (GOOD + "space: {f: {train.lr: {grid: []}}}\nsearch: tune=grid\n", ["train.lr.grid is []"]),
    (GOOD + "space: {f: {train.lr: {grid: [a]}}}\nsearch: tune=grid\n", ["train.lr is 'a'"]),
    (
        GOOD + "space: {f: {train.batch: {grid: [0, 9]}}}\nsearch: tune=grid\n",
        ["train.batch is 0", "train.batch=0, of the search space that `pflsweep list spaces` shows)"],
    ),
    (GOOD + "space: {f: {train.lr: {grid: [{a: 1}]}}}\nsearch: tune=grid\n", ["train.lr.a"]),
    (GOOD + "space: {f: {train.lr: {grid: [.inf, 1]}}}\nsearch: tune=grid\n", ["train.lr.range is [1, inf]"]),
    (GOOD + "space: {f: {seed: {grid: [1]}}}\nsearch: tune=grid\n", ["seed is not a hyperparameter", "seed=0,1"]),
    ("settings: {a: partition=iidd}\nmethods: {f: algorithm=fedavg}", ["x.yaml: f in a", "Did you mean 'iid'"]),
    ("settings: {a: partition}\nmethods: {f: algorithm=fedavg}", ["settings.a: 'partition' is not an override"]),
    ("settings: {a: null}\nmethods: {f: algorithm=fedavg}", ["settings.a is None"]),
    ("settings: {'': partition=iid}\nmethods: {f: algorithm=fedavg}", ["settings has an empty name"]),
    ("settings: {a: =3}\nmethods: {f: algorithm=fedavg}", ["settings.a: '=3' has no key"]),
    ("settings: {a: hydra.run.dir=x}\nmethods: {f: algorithm=fedavg}", ["settings.a: hydra.run.dir=x"]),
    ("settings: {a: 'ü.é=3'}\nmethods: {f: algorithm=fedavg}", ["settings.a: 'ü.é=3'", "ASCII letters"]),
    ("settings: {a: 'x=1,2'}\nmethods: {f: algorithm=fedavg}", ["several values"]),
    ("settings: {a: 'train.lr=[1'}\nmethods: {f: algorithm=fedavg}", ["f in a", "do not pair"]),
    ("settings: {a: partition=iid}\nmethods: {on: algorithm=fedavg}", ["methods has the name True"]),
    ("settings: {a: partition=iid}\nmethods: {f: {run: algorithm=fedavg, only: [b]}}", ["'b' is not a setting"]),
    ("settings: {a: partition=iid}\nmethods: {f: {}}", ["methods.f.run is None"]),
    ("include: x.yaml\n" + GOOD, ["includes run in a circle"]),
    ("include: y.yaml\n" + GOOD, ["'y.yaml'", "not there"]),
    ("include: 3\n" + GOOD, ["include is 3"]),
    ("scales: {smoll: {}}\n" + GOOD, ["Did you mean 'small'"]),
]
SPACES = [
    ("", ["sweeps/space/fedprox.yaml is empty", "train.lr: {grid: [0.1, 0.01]}"]),
    ("null", ["sweeps/space/fedprox.yaml is empty"]),
    ("3", ["fedprox.yaml has to be lines of `key: value`"]),
    ("algorithm.mu:\n\tgrid: [1]", ["fedprox.yaml, line 2", "not by tabs"]),
    ("algorithm.mu: 3", ["algorithm.mu: an axis is written as"]),
    ("algorithm.mu: {grid: 1}", ["algorithm.mu.grid is 1"]),
    ("algorithm.mu: {}", ["algorithm.mu.grid is None"]),
    ("algorithm.mu: {grid: [1,1]}", ["names a value twice"]),
    ("algorithm.mu: {grid: [1], range: [3,1]}", ["range is [3, 1]"]),
    ("algorithm.muu: {grid: [1]}", ["sweeps/space/fedprox.yaml", "'algorithm.muu'", "Did you mean 'algorithm.mu'"]),
    ("algorithm: {grid: [fedavg]}", ["algorithm is not a hyperparameter", "algorithm=fedavg,fedprox"]),
    ("tune.points: {grid: [1]}", ["tune.points is not a hyperparameter"]),
    ("paths.runs: {grid: [a, b]}", ["paths.runs is not a hyperparameter"]),
    ("train.rounds: {grid: [1e3]}", ["train.rounds is 1000.0", "Write 1000."]),
    ("algorithm.mu: null", ["tune=grid has nothing to search"]),
]
SCALES = [
    ("3", ["my.yaml has to be lines of `key: value`"]),
    ("images: 0", ["'images' is 0"]),
    ("seeds: true", ["'seeds' is True"]),
    ("set: 3", ["'set' has to be lines"]),
    ("set: {train.rounds: a}", ["train.rounds is 'a'"]),
    ("foo: 1", ["unknown key 'foo'"]),
]
COMMANDS = [
    ("foo", ["Unknown command 'foo'", "list, data, report"]),
    ("lst", ["Did you mean 'list'"]),
    ("fedavg", ["Did you mean algorithm=fedavg"]),
    ("check", ["check: the following arguments are required: method. See `pflsweep check --help`."]),
    ("train.lr", ["'train.lr' has no value: give it one, as in train.lr=VALUE"]),
    ("partition", ["'partition' has no value"]),
    ("tune.seeds", ["'tune.seeds' has no value"]),
    ("list", ["what"]),
    ("list algorithm", ["Did you mean 'algorithms'"]),
    ("list algorithms extra", ["extra"]),
    ("list algorithms --config-dir=/etc/hostname", ["There is no folder '/etc/hostname'"]),
    ("data foo", ["data: there is no 'foo'", "show"]),
    ("data show foo", ["'foo' is not key=value"]),
    ("data show =3", ["'=3' has no key"]),
    ("data show partition.clients=5000", ["partition.clients is 5000", "1797"]),
    ("data show seed=0,1", ["seed=0,1 has several values"]),
    ("data show plan=true", ["plan=true is a key of a sweep"]),
    ("data show hydra.run.dir=x", ["hydra.run.dir=x", "paths.runs"]),
    ("data show --out=x.txt", ["'x.txt' has to end in .png"]),
    ("report foo", ["there is no 'foo'", "fedala/table1"]),
    ("report runs", ["no folder of runs 'runs'", "--runs DIR"]),
    ("report runs --runs=/etc/hostname", ["no folder of runs '/etc/hostname'"]),
    ("report runs nothing", ["No run 'nothing'"]),
    ("report runs --target=0.5", ["--target 50"]),
    ("report runs --target=abc", ["--target", "'abc'"]),
    ("report pgfed/table9", ["Did you mean 'pgfed/table7'"]),
    ("doctor tune.points=-1", ["tune.points is -1"]),
    ("record exprot", ["pflsweep: record: there is no 'exprot'. Did you mean 'export'?"]),
    ("data shwo", ["data: there is no 'shwo'. Did you mean 'show'?"]),
    ("list", ["list: name what to list, as in `pflsweep list algorithms`"]),
    ("check foo", ["there is no algorithm 'foo'"]),
    ("check fedprox mu=-1", ["FedProx.mu is -1"]),
    ("check fedprox mu=", ["FedProx.mu is null"]),
    ("check fedprox mu=[1", ["check: 'mu=[1': This cannot be read as YAML"]),
    ("check os.path", ["'os.path' is not a method"]),
    ("check nothing.at.All", ["'nothing.at' cannot be imported"]),
]
# Contents of a user's file algorithm/mine.yaml
OPTIONS = [
    ("", ["algorithm=mine: `_target_` is missing"]),
    ("3", ["d/algorithm/mine.yaml has to be lines of `key: value`"]),
    ("\t", ["d/algorithm/mine.yaml, line 1", "not by tabs"]),
    (b"\xff", ["d/algorithm/mine.yaml cannot be read"]),
    ("defaults: 3", ["algorithm/mine", "must be a list"]),
    ("defaults: [nothing]", ["Could not load 'algorithm/nothing'"]),
    ("_target_: a", ["`_target_` is 'a'", "my_package.MyClass"]),
    ("_target_: os.system", ["os.system is not a method"]),
    ("_target_: pflsweep.algorithms.fedprox.FedProx", ["algorithm.mu is missing"]),
    ("_target_: pflsweep.algorithms.fedprox.FedProx\nmu: ${nothing}", ["algorithm.mu cannot be resolved"]),
]


def npz(**arrays: np.ndarray) -> bytes:
    """Return the content of a .npz file."""
    made = io.BytesIO()
    np.savez(made, **arrays)
    return made.getvalue()


def png(side: int) -> bytes:
    """Return the content of a grey .png file."""
    made = io.BytesIO()
    Image.new("L", (side, side)).save(made, "PNG")
    return made.getvalue()


X, Y = np.zeros((60, 4), np.float32), np.arange(60) % 3
GOOD_ROWS = "1,2,0\n2,3,1\n" * 40
DATA: list[tuple[str, Files, list[str]]] = [
    ("npz", {"d": "no"}, ["/d cannot be read as a .npz file", "it is not a zip archive", "numpy.savez"]),
    ("npz", {"d": b""}, ["it is empty"]),
    ("npz", {"d": b"\x80\x04K\x01."}, ["it is not a zip archive"]),
    ("npz", {"d": npz(a=X)[:50]}, ["cut short or damaged"]),
    ("npz", {"d": npz(a=X)}, ["has no x_train; it has a"]),
    ("npz", {"d": npz(x_train=X.astype(object), y_train=Y)}, ["an array of Python objects"]),
    ("npz", {"d": npz(x_train=X, y_train=np.arange(60))}, ["each row", "a class of its own"]),
    ("npz", {"d": npz(x_train=X, y_train=0 * Y)}, ["one class only"]),
    ("npz", {"d": npz(x_train=X[:, :0], y_train=Y)}, ["x_train has shape (60, 0)"]),
    ("npz", {"d": npz(x_train=X * np.nan, y_train=Y)}, ["no finite numbers"]),
    ("npz", {"d": npz(x_train=X, y_train=Y[:5])}, ["y_train has shape (5,)"]),
    ("csv", {"d": "a,a,y\n" + GOOD_ROWS}, ["/d has two columns 'a'", "rename"]),
    ("csv", {"d": "a,y,y\n" + GOOD_ROWS}, ["/d has two columns 'y'"]),
    ("csv", {"d": "a,y\n" + "".join(f"1,{k}\n" for k in range(80))}, ["80 different values in 80 rows", "classes"]),
    ("csv", {"d": "a,y\n" + "1,0\n" * 80}, ["one value only"]),
    ("csv", {"d": "a;y\n" + "1;0\n2;1\n" * 40}, ["80 rows and 1 columns", "commas"]),
    ("csv", {"d": "a,y\n" + ",0\n1,1\n" * 40}, ["column 'a' has no finite number in line 2"]),
    ("csv", {"d": ""}, ["/d cannot be read as csv"]),
    ("csv", {"d": "a,b\n1,2\n"}, ["dataset.label is 'y'", "a, b"]),
    ("csv dataset.client=y", {"d": "a,b,y\n" + GOOD_ROWS}, ["dataset.client and dataset.label are both 'y'"]),
    ("folder", {"d/a/1.png": b"xx", "d/b/2.png": png(8)}, ["d/a/1.png is damaged, or no image."]),
    ("folder", {"d/a/1.png": png(8), "d/b/2.png": png(8)[:40]}, ["d/b/2.png is damaged"]),
    ("folder", {"d/a/1.jpg": b"\xff\xd8\xff\xe0" + b"x" * 50, "d/b/2.png": png(8)}, ["d/a/1.jpg is damaged"]),
    ("folder", {"d/a/1.tif": b"II*\0" + b"x" * 40, "d/b/2.png": png(8)}, ["d/a/1.tif is damaged"]),
    ("folder", {"d/a/1.png": png(8), "d/b/2.png": png(9)}, ["d/b/2.png has 9x9 pixels"]),
    ("folder dataset.size=9999999", {"d/a/1.png": png(8), "d/b/2.png": png(8)}, ["dataset.size is 9999999", "memory"]),
    ("folder", {"d/a/1.txt": png(8), "d/b/2.txt": png(8)}, ["no images in the folders"]),
    ("folder", {"d/x": ""}, ["0 folder(s)", "one for each class"]),
]


def split(arguments: str) -> list[str]:
    """Return the words of a command line; a line with a space inside a value is one word."""
    return [arguments] if any(word in arguments for word in ("- 1", "', ")) else arguments.split(" ")


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "words"), [*GIVEN, *GRAMMAR, *KEYS, *VALUES, *FLAGS, *COMMANDS])
@pytest.mark.usefixtures("elsewhere")
def test_a_wrong_command(arguments: str, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    refused(split(arguments), {}, words, capfd)


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "words"), SWEEPS)
@pytest.mark.usefixtures("elsewhere")
def test_a_wrong_sweep(arguments: str, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    refused(["-m", *split(arguments), *([] if "plan=" in arguments else ["plan=true"])], {}, words, capfd)


@pytest.mark.slow
@pytest.mark.parametrize(("content", "words"), SWEEP_FILES)
@pytest.mark.usefixtures("elsewhere")
def test_a_wrong_sweep_file(content: str | bytes, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    refused(SWEEP, {"x.yaml": content}, words, capfd)


@pytest.mark.slow
@pytest.mark.parametrize(("content", "words"), SPACES)
@pytest.mark.usefixtures("elsewhere")
def test_a_wrong_search_space(content: str, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    argv = ["-m", "algorithm=fedprox", "tune=grid", "plan=true"]
    refused(argv, {"sweeps/space/fedprox.yaml": content}, words, capfd)


@pytest.mark.slow
@pytest.mark.parametrize(("content", "words"), SCALES)
@pytest.mark.usefixtures("elsewhere")
def test_a_wrong_scale(content: str, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    refused(["-m", "scale=my", "plan=true"], {"sweeps/scale/my.yaml": content}, words, capfd)


@pytest.mark.slow
@pytest.mark.parametrize(("content", "words"), OPTIONS)
@pytest.mark.usefixtures("elsewhere")
def test_a_wrong_option_of_ones_own(content: str | bytes, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    refused(["algorithm=mine", "--config-dir=d"], {"d/algorithm/mine.yaml": content}, words, capfd)


@pytest.mark.parametrize(("group", "name"), [("train", "train.participation"), ("metrics", "metrics.subset")])
@pytest.mark.usefixtures("elsewhere")
def test_an_option_of_ones_own_without_a_key(group: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    refused([f"{group}=mine", "--config-dir=d"], {f"d/{group}/mine.yaml": "rounds: 3\n" * (group == "train")},
            [f"{group}=mine has no", "is missing"], capfd)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "files", "words"), DATA)
@pytest.mark.usefixtures("elsewhere")
def test_wrong_data(chosen: str, files: Files, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    label = ["dataset.label=y"] if chosen.startswith("csv") else []
    refused([*f"dataset={chosen}".split(), "dataset.path=d", "data.root=root", *label], files, words, capfd)


@pytest.mark.usefixtures("elsewhere")
def test_files_that_are_folders(capfd: pytest.CaptureFixture[str]) -> None:
    Path("x.yaml").mkdir()
    refused(SWEEP, {}, ["'x.yaml'", "a folder, and no file"], capfd)
    said = "dataset.path is x.yaml, which is a folder: dataset=npz reads a file."
    refused(["dataset=npz", "dataset.path=x.yaml"], {}, [said], capfd)


# Valid input: letters of other scripts, and Hydra's functions


def planned(argv: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    assert main(["-m", *argv, "plan=true"]) == 0, capfd.readouterr().err
    return capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("paths.runs=ünïcode/路径 tracking.experiment=é", ["1 trial,"]),
        ("sweep=路径.yaml only=[é]", ["é", "ü 路", "1 trial,"]),
        ("algorithm=路 --config-dir 路径", ["路"]),
        ("algorithm=路,fedavg --config-dir=路径", ["2 trials"]),
        ("dataset=npz dataset.path=路径/数.npz partition.least=1", ["1 trial,"]),
        ("train.lr=range(0.1,0.4,0.1)", ["train.lr=0.1 ", "train.lr=0.2 ", "train.lr=0.3 ", "3 trials"]),
        ("seed=range(0,3)", ["seeds 0, 1, 2"]),
        ("train.lr=choice(0.1,0.2)", ["2 trials"]),
        ("algorithm=glob(fedprox*)", ["fedprox_c", "2 trials"]),
        ("algorithm=fedavg,fedavg", ["1 trial,"]),
    ],
)
def test_what_is_unusual_and_right(
    arguments: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ünïcode 路径"
    (folder / "路径" / "algorithm").mkdir(parents=True)
    monkeypatch.chdir(folder)
    Path("路径/algorithm/路.yaml").write_text("_target_: pflsweep.algorithms.fedavg.FedAvg\n")
    Path("路径/数.npz").write_bytes(npz(x_train=X, y_train=Y))
    Path("路径.yaml").write_text(
        "settings: {'ü 路': partition=iid}\nmethods: {é: algorithm=fedavg paths.runs=路, f: algorithm=local}\n"
    )
    out = planned(arguments.split(), capfd)
    assert [word for word in words if word not in out] == [], out
