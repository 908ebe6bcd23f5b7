"""Makes .venv with the locked packages and the model ready: python3 tools/setup.py [cpu|gpu].

Runs on the standard library alone, under any Python 3, so that a Python that is too old gets a sentence.
A set-up that was interrupted is picked up; one that is complete costs a look at a file.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 14)
PYTORCH_CPU = "https://download.pytorch.org/whl/cpu"  # the +cpu builds of torch are not on PyPI
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
DONE, INSTALLING = VENV / ".workbook-done", VENV / ".workbook-installing"

# Lets vLLM look at the model's class, which it keeps on disk, and compiles what notebooks, engines and the server
# import: with PYTHONDONTWRITEBYTECODE set, as in most containers, each process would compile it anew.
WARM_UP = """
import importlib, helpers
from vllm import LLM
from vllm.model_executor.models import ModelRegistry
ModelRegistry.models["LlamaForCausalLM"].inspect_model_cls()
for name in (
    "vllm.model_executor.models.llama", "vllm.v1.worker.cpu_worker", "vllm.v1.worker.gpu_worker",
    "vllm.v1.core.sched.scheduler", "vllm.v1.executor.uniproc_executor", "vllm.entrypoints.openai.api_server",
    "compressed_tensors", "helpers.serving.compare", "helpers.jobs.__main__", "ipykernel.kernelapp", "ipywidgets",
    "jupyterlab.labapp", "matplotlib.backends.backend_agg", "matplotlib.pyplot", "pandas", "pyarrow.parquet",
):
    try:
        importlib.import_module(name)
    except Exception:
        pass  # of the other build
"""


def main(argument):
    python = find_python()
    device = choose_device(argument)
    want = fingerprint(python, device)
    if DONE.exists() and DONE.read_text() == want:
        return
    print("Setting up for %s. The first time takes about two minutes; later starts take none." % device, flush=True)
    if not (VENV / "bin" / "uv").exists() or kind() != kind(want):
        step("Python environment in .venv", "10 s", create, python)
    step("Packages of requirements/%s.txt" % device, "30 s to 5 min, by network", install, device)
    step("The model, made ready on disk", "40 s", prepare)
    DONE.write_text(want)


def step(what, usually, function, *arguments):
    print("  %s (usually %s) ... " % (what, usually), end="", flush=True)
    start = time.time()
    function(*arguments)
    print("%.0f s" % (time.time() - start), flush=True)


def find_python():
    """This Python, or another one on the PATH that is new enough."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return sys.executable
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        other = shutil.which("python3.%d" % minor)
        if other and subprocess.run([other, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0:
            return other
    fail(
        "python3 is %d.%d, and the workbook needs 3.%d to 3.%d: install one of these, or name it with "
        "`make lab PYTHON=/path/to/python3.12`." % (sys.version_info[:2] + (OLDEST[1], NEWEST[1]))
    )


def choose_device(argument):
    """What was asked for, else gpu where nvidia-smi sees one."""
    if argument not in ("", "cpu", "gpu"):
        fail("DEVICE=%s is neither cpu nor gpu." % argument)
    if argument == "cpu":
        return "cpu"
    try:
        seen = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    except OSError:
        seen = b""
    if argument == "gpu" and b"GPU" not in seen:
        fail("DEVICE=gpu was asked for, and nvidia-smi sees no GPU here: check the driver, or use DEVICE=cpu.")
    return "gpu" if b"GPU" in seen else "cpu"


def fingerprint(python, device):
    """What a finished set-up was made from: another lock, Python or device is another set-up."""
    version = subprocess.check_output([python, "-c", "import sys; print(sys.version)"])
    files = (ROOT / "requirements" / (device + ".txt"), ROOT / "pyproject.toml", Path(__file__))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return "%s %s %s\n" % (device, hashlib.sha256(version).hexdigest()[:12], digest)


def kind(text=None):
    """The part of a fingerprint, device and Python, whose change needs a new environment."""
    if text is None:
        source = INSTALLING if INSTALLING.exists() else DONE
        text = source.read_text() if source.exists() else ""
    return text.split()[:2]


def create(python):
    if VENV.exists():
        shutil.rmtree(str(VENV))
    made = subprocess.run([python, "-m", "venv", str(VENV)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode:
        fail(
            "%s could not make a virtual environment: %s. On Debian and Ubuntu, `apt install python3-venv` helps."
            % (python, last_line(made.stdout))
        )
    run([str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", "uv"])


def install(device):
    """The lock, by uv. If the last installation was broken off, every package is installed anew."""
    lock = ROOT / "requirements" / (device + ".txt")
    again = ["--reinstall"] if INSTALLING.exists() else []
    if DONE.exists():
        DONE.unlink()
    INSTALLING.write_text(fingerprint(str(PYTHON), device))
    uv = [str(VENV / "bin" / "uv"), "pip", "install", "-q", "--python", str(PYTHON), "--no-deps"]
    if device == "cpu":
        install_torch(uv, next(line for line in lock.read_text().splitlines() if line.startswith("torch==")), again)
    run(uv + again + ["-r", str(lock), "-e", str(ROOT)])
    INSTALLING.unlink()


def install_torch(uv, pin, again):
    """torch's CPU build, from where pip is told to look, else from PyTorch's own index."""
    name, version = pin.split("==")
    if not again and list(VENV.glob("lib/*/site-packages/%s-%s.dist-info" % (name, version))):
        return
    folder = VENV / "wheels"
    pip = [str(PYTHON), "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), pin]
    if subprocess.run(pip, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
        run(uv + again + [str(next(folder.glob("torch-*.whl")))])
    else:
        run(uv + again + ["--index-url", PYTORCH_CPU, pin])
    shutil.rmtree(str(folder), ignore_errors=True)


def prepare():
    """Converts the model on one core while another compiles what an engine imports."""
    warm = subprocess.Popen(
        [str(PYTHON), "-c", WARM_UP], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env()
    )
    if not os.environ.get("WORKBOOK_MODEL"):
        run([str(PYTHON), "-m", "helpers.models"])
    warm.wait()


def env():
    return dict(os.environ, PYTHONDONTWRITEBYTECODE="", UV_HTTP_TIMEOUT="300", UV_LINK_MODE="copy")


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env(), cwd=str(ROOT))
    if done.returncode:
        print()
        sys.stdout.write(done.stdout.decode(errors="replace"))
        fail("%s failed (see above); `make` picks it up from here." % " ".join(command[:4]))


def last_line(output):
    return (output.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]


def fail(sentence):
    sys.exit("\nSet-up stopped: " + sentence)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
