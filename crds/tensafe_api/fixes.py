"""Fixes for causes that need another action than their reason's own fix.

A blocker names its fix by the identifier. The operator and the kubectl plugin show the text.
"""

from __future__ import annotations

from enum import StrEnum


class Fix(StrEnum):
    """What a user can do about a cause.

    Attributes:
        text: one or more sentences.
    """

    text: str

    def __new__(cls, word: str, text: str) -> Fix:
        member = str.__new__(cls, word)
        member._value_ = word
        member.text = text
        return member

    KUBERAY_FIELD = (
        "KubeRayField",
        "If the fields in the message are the manifest's, suspend the job, correct them in spec.cluster or its "
        "profile, and set spec.suspend to false. Otherwise install KubeRay 1.6 or newer; the job then continues "
        "without further action.",
    )
    SCHEDULER = (
        "Scheduler",
        "Check the component that the pod waits for: the scheduler in cluster.schedulerName, the queue or the PodGroup "
        "of its gang, or what sets its scheduling gates, such as Kueue. The job then continues without further action. "
        "Or suspend the job, correct these fields, and set spec.suspend to false.",
    )
    FINALIZER = (
        "Finalizer",
        "If the finalizer is KubeRay's (ray.io/rayjob-finalizer), install KubeRay 1.6 or newer, or let it watch this "
        "namespace; the job then continues without further action. Otherwise remove it from the RayJob (kubectl edit), "
        "or repair the component that set it.",
    )
    LOST_AGAIN = (
        "LostAgain",
        "While an attempt runs, read the logs of its workers (kubectl tensafe logs), and check for a lack of memory, "
        "for nodes that are removed, and the network. If the model, the data or a step takes longer, an administrator "
        "raises the chart's value stallSeconds.",
    )

    @classmethod
    def named(cls, word: object) -> Fix | None:
        """The fix with this identifier; None for one that this version does not know."""
        return next((each for each in cls if each.value == word), None)
