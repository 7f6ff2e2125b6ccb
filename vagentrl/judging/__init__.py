"""Around a judge: what is asked, when, and what keeps an agent from fooling it."""

from vagentrl.judging.audit import Audit
from vagentrl.judging.claim_filters import (
    ClaimFilter,
    Contradiction,
    CopiedPrompt,
    Length,
    Repetition,
    Unchanged,
)
from vagentrl.judging.judgement_log import JudgementLog
from vagentrl.judging.template_penalty import TemplatePenalty

__all__ = [
    "Audit",
    "ClaimFilter",
    "Contradiction",
    "CopiedPrompt",
    "JudgementLog",
    "Length",
    "Repetition",
    "TemplatePenalty",
    "Unchanged",
]
