"""From facts to findings: what is OK, WARN or FAIL, and what to do about it. Nothing is read or run here."""

from swift_rlx import __version__
from swift_rlx.cli.checks import Check, Report, Section, fail, ok, warn
from swift_rlx.cli.environment import Environment
from swift_rlx.cli.hook_checks import hook_checks
from swift_rlx.cli.probe import Probe
from swift_rlx.cli.reward_checks import reward_checks


def diagnose(environment: Environment, probe: Probe) -> Report:
    """All sections, in the order in which a reader should repair things."""
    return Report(
        __version__,
        (
            Section("python", "Python", _python(environment)),
            Section("packages", "Packages", _packages(environment, probe)),
            Section("hook", "Hook into ms-swift", hook_checks(environment, probe)),
            Section("contract", "What swift-rlx builds on in ms-swift", _contract(environment, probe)),
            Section("devices", "Devices", (*_devices(probe), _port(environment))),
            Section("engines", "Rollout engines", _engines(environment)),
            Section("extras", "Optional extras", _extras(environment)),
            Section("rewards", "Rewards (--reward_funcs)", reward_checks(environment, probe)),
        ),
    )


def _python(environment: Environment) -> tuple[Check, ...]:
    system = environment.system
    return (
        ok("python", f"{environment.python} ({environment.executable})", version=environment.python),
        ok("platform", system)
        if system.startswith("Linux")
        else warn("platform", f"{system} is not tested", "use Linux if something does not work here"),
    )


def _packages(environment: Environment, probe: Probe) -> tuple[Check, ...]:
    own = environment.own_version
    checks = [
        ok("swift-rlx", own, version=own)
        if own is not None
        else warn(
            "swift-rlx",
            f"{__version__}, imported from a folder: it is not installed, so `swift` does not load it",
            "install it (`pip install .` in the clone of swift-rlx), or run `python -m swift_rlx rlhf ...`",
            version=None,
        )
    ]
    for name, version in environment.packages.items():
        if version is None:
            wanted = environment.supported if name == "ms-swift" else name
            checks.append(fail(name, "not installed", f"pip install '{wanted}'", version=None))
        elif name == "ms-swift":
            checks.append(_ms_swift(version, probe))
        else:
            checks.append(ok(name, version, version=version))
    return tuple(checks)


def _ms_swift(version: str, probe: Probe) -> Check:
    contract = probe.answers.get("contract")
    if contract is None:
        return ok("ms-swift", version, version=version)
    tested = " and ".join(contract["tested"])
    if contract["version_problem"] is not None:
        remedy = f"pip install 'ms-swift=={contract['tested'][-1]}' if runs fail (tested: {tested})"
        return warn("ms-swift", contract["version_problem"], remedy, version=version)
    note = "tested" if version in contract["tested"] else f"supported; tested are {tested}"
    return ok("ms-swift", f"{version} ({note})", version=version)


def _contract(environment: Environment, probe: Probe) -> tuple[Check, ...]:
    if environment.packages["ms-swift"] is None:
        return (fail("contract", "not checked: ms-swift is not installed", "install ms-swift first"),)
    if "interpreter" in probe.errors:
        return (fail("contract", "not checked: see `interpreter`", "repair the interpreter first"),)
    return (_imports(probe), _clauses(probe), _types(probe))


def _imports(probe: Probe) -> Check:
    error = probe.errors.get("swift") or probe.errors.get("trainers")
    if error is None:
        return ok("trainers", "ms-swift and the trainers import")
    what = "ms-swift does not import" if "swift" in probe.errors else "the trainers do not import"
    return fail("trainers", f"{what}: {error}", _import_remedy(error))


def _import_remedy(error: str) -> str:
    """`pip install X` for "ModuleNotFoundError: No module named 'x.y'"."""
    kind, _, message = error.partition(": ")
    module = message.partition("'")[2].partition("'")[0].partition(".")[0]
    if kind == "ModuleNotFoundError" and module and module not in ("swift", "swift_rlx"):
        return f"pip install {module.replace('_', '-')}"
    return "repair or reinstall the package that the message names"


def _clauses(probe: Probe) -> Check:
    contract = probe.answers.get("contract")
    if contract is None:
        error = probe.errors.get("contract", "no answer")
        return fail("contract", f"not checked: {error}", _import_remedy(error))
    if not contract["breaches"]:
        detail = f"all {contract['clauses']} clauses are kept"
        return ok("contract", detail, clauses=contract["clauses"], breaches=[])
    breaches, clauses = contract["breaches"], contract["clauses"]
    unimportable = probe.errors.get("swift") or probe.errors.get("trainers")
    tested = f"pip install 'ms-swift=={contract['tested'][-1]}', or a swift-rlx that supports your ms-swift"
    return fail(
        "contract",
        f"{len(breaches)} of {clauses} clauses are broken: {'; '.join(breaches)}",
        tested if unimportable is None else _import_remedy(unimportable),
        clauses=clauses,
        breaches=breaches,
    )


def _types(probe: Probe) -> Check:
    types = probe.answers.get("types")
    if types is None:
        return fail(
            "rlhf_type",
            f"the arguments of `swift rlhf` cannot be built: {probe.errors.get('types', 'no answer')}",
            "repair what fails above first",
        )
    if "rloo" not in types:
        detail = "`swift rlhf` does not accept --rlhf_type rloo"
        return fail("rlhf_type", detail, "repair the hook, see above", accepted=types)
    return ok("rlhf_type", f"`swift rlhf` accepts {', '.join(types)}", accepted=types)


def _devices(probe: Probe) -> tuple[Check, ...]:
    devices = probe.answers.get("devices")
    if devices is None:
        error = probe.errors.get("devices", "see `interpreter`")
        return (warn("devices", f"unknown: {error}", "repair torch"),)
    accelerators, cores = devices["accelerators"], devices["cores"]
    checks = [ok(f"device {index}", text) for index, text in enumerate(accelerators)]
    if not accelerators:
        checks.append(ok("accelerator", "none: training and generation run on the CPU (--use_cpu true)"))
    backends = devices["backends"]
    return (
        *checks,
        ok("cpu", f"{cores} cores", cores=cores, accelerators=accelerators),
        ok("process groups", ", ".join(backends), backends=backends)
        if backends
        else warn("process groups", "no nccl, no gloo: one process only", "install a torch build with gloo"),
    )


def _port(environment: Environment) -> Check:
    port, problem = environment.port, environment.port_problem
    if problem is None:
        return ok("port", f"{port} is free for the ranks of a run to meet", port=port, problem=None)
    remedy = "set MASTER_PORT to a free port, or end the program that listens there"
    return warn(
        "port", f"{port}, where the ranks of a run meet, {problem}", remedy, port=port, problem=problem
    )


def _engines(environment: Environment) -> tuple[Check, ...]:
    return (
        ok("transformers", "always there"),
        *(
            ok(name, version or "not installed (optional)", version=version)
            for name, version in environment.engines.items()
        ),
    )


def _extras(environment: Environment) -> tuple[Check, ...]:
    if not environment.extras:
        return (ok("extras", "unknown: swift-rlx is not installed"),)
    checks = []
    for extra, requirements in sorted(environment.extras.items()):
        parts = [f"{name} {version or 'not installed'}" for name, version in requirements.items()]
        missing = None in requirements.values()
        hint = f" (optional: `pip install '.[{extra}]'` in the clone of swift-rlx)" if missing else ""
        checks.append(ok(extra, f"{', '.join(parts)}{hint}", installed=not missing))
    return tuple(checks)
