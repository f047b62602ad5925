"""Hardware counters of a step's kernels, by Nsight Compute: of each kernel the time, and how far it uses
the memory, the tensor cores and the L2 cache."""
import csv
import io
import os
import re
import shutil
import signal
import subprocess

METRICS = {
    "seconds": "gpu__time_duration.sum",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "l2_hits": "lts__t_sector_hit_rate.pct",
}
SECONDS = {"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3,
           "s": 1.0, "second": 1.0}


def short_name(kernel):
    """A kernel's name without its namespaces, template arguments and parameters."""
    name = kernel.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    name = re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0]
    return name.rsplit("::", 1)[-1].strip()


def parse(text):
    """Of the profiler's CSV (a row of names, a row of units, a row for each launch): by kernel, in the
    order of their first launch, {"name", "launches", "seconds" in all, "memory", "tensor", "l2_hits" in
    per cent, weighted by time}."""
    begin = text.find('"ID"')
    if begin < 0:
        raise ValueError(f"the profiler printed no table: {text.strip()[-300:]}")
    names, units, *launches = csv.reader(io.StringIO(text[begin:]))
    column = {name: names.index(metric) for name, metric in METRICS.items()}
    scale = SECONDS[units[column["seconds"]]]
    kernel_column = names.index("Kernel Name")

    def number(row, name):
        value = row[column[name]].replace(",", "")
        return float(value) if value and value != "n/a" else 0.0

    kernels = {}
    for row in launches:
        if len(row) != len(names):
            continue
        name = short_name(row[kernel_column])
        kernel = kernels.setdefault(name, {"name": name, "launches": 0, "seconds": 0.0,
                                           "memory": 0.0, "tensor": 0.0, "l2_hits": 0.0})
        time = number(row, "seconds") * scale
        kernel["launches"] += 1
        kernel["seconds"] += time
        for metric in ("memory", "tensor", "l2_hits"):
            kernel[metric] += time * number(row, metric)
    for kernel in kernels.values():
        for metric in ("memory", "tensor", "l2_hits"):
            kernel[metric] /= kernel["seconds"] or 1.0
    return list(kernels.values())


def measure(command, phase, launches, seconds_max=90):
    """The first `launches` kernels of the steps of a phase ("prefill" or "decode", the executor's NVTX
    ranges), or None where there is no profiler or it may not read counters. The program runs once for each
    group of counters: what it holds of the device's memory is too much to be saved between them."""
    profiler = shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")
    if profiler is None:
        print("no Nsight Compute (ncu) here: left out")
        return None
    command = [profiler, "--csv", "--page", "raw", "--clock-control", "none", "--replay-mode", "application",
               "--nvtx", "--nvtx-include", f"{phase}/", "--launch-count", str(launches), "--metrics",
               ",".join(METRICS.values()), *command]
    # A group of its own: what it profiles holds the device's memory and must not outlive it.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
    try:
        printed, _ = process.communicate(timeout=seconds_max)
        return parse(printed)
    except (ValueError, KeyError) as e:
        print(f"Nsight Compute: left out: {e}")
    except subprocess.TimeoutExpired:
        print(f"Nsight Compute: left out: it took more than {seconds_max} s")
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    return None
