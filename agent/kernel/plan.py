"""Plans what to attach from host facts and declarations. Pure; standard library only, for the loader."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass
class ProgramPlan:
    """One program. ``attach``: whether to load it; if not, ``reason`` and ``remedy``."""

    function: str
    kind: str
    target: str
    loses: str
    on_demand: bool
    fallback: str = ""
    optional: bool = False
    needs: str = ""
    instead_of: str = ""
    attach: bool = True
    reason: str = ""
    remedy: str = ""


@dataclass
class FamilyPlan:
    """One family. state: attached, degraded (a program is missing), unavailable (nothing can be attached)."""

    name: str
    programs: list[ProgramPlan]
    maps: list[str] = field(default_factory=list)
    state: str = "attached"
    reason: str = ""
    remedy: str = ""

    def settle(self) -> None:
        """Derives the family's state from its programs."""
        missing = [p for p in self.programs if not p.attach]
        if len(missing) < len(self.programs):
            missing = [p for p in missing if not p.optional]
        if not missing or self.state == "unavailable":
            return
        self.state = "degraded" if len(missing) < len(self.programs) else "unavailable"
        self.reason = "; ".join(
            f"{p.function}: {p.reason}" + (f" (not seen: {p.loses})" if p.loses else "") for p in missing
        )
        self.remedy = next((p.remedy for p in missing if p.remedy), "")

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def plan(families: list[dict[str, object]], words: dict[str, int]) -> list[FamilyPlan]:
    """Selects the programs that this kernel supports.

    families: declarations as JSON (``name``, ``programs``, ``maps``). words: the values of
    ``agent.kernel.btf.defines``.
    """
    plans = []
    for family in families:
        programs = [ProgramPlan(**p) for p in family["programs"]]  # type: ignore[attr-defined]
        for p in programs:
            needed, _, why = p.needs.partition(":")
            if needed and words and not words.get(f"KFUNC_{needed}"):
                p.attach, p.reason = False, why.strip()
                continue
            if p.kind not in ("raw_tp", "tp_btf") or words.get(f"TP_{p.target}"):
                continue
            if p.fallback and words:
                p.kind, p.target = "fexit", p.fallback
            else:
                p.attach, p.reason = False, f"this kernel has no tracepoint {p.target}"
        one = FamilyPlan(str(family["name"]), programs, list(family["maps"]))  # type: ignore[call-overload]
        one.settle()
        plans.append(one)
    return plans
