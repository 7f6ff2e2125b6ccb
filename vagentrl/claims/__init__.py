"""Claims about the state: judges that score them, and defences against reward hacking."""

from vagentrl.claims.audit import Audit
from vagentrl.claims.claim_filters import (
    ClaimFilter,
    Contradiction,
    CopiedPrompt,
    Length,
    Repetition,
)
from vagentrl.claims.judgement_log import JudgementLog
from vagentrl.claims.template_penalty import TemplatePenalty

__all__ = [
    "Audit",
    "ClaimFilter",
    "Contradiction",
    "CopiedPrompt",
    "JudgementLog",
    "Length",
    "Repetition",
    "TemplatePenalty",
]
