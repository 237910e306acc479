"""What learns beside a task in fine-tuning: the language model the encoder was trained as."""

from firth.checkpoint import make_goal
from firth.errors import BadConfig
from firth.finetuning.start import Start
from firth.finetuning.transfer import TransferConfig
from firth.objectives.auxiliary_lm import NAME, AuxiliaryLM
from firth.objectives.causal_lm import CausalLM
from firth.objectives.objective import Objective
from firth.tensors import Encoder
from firth.train.loop import Learner


def beside(start: Start, encoder: Encoder, transfer: TransferConfig) -> dict[str, AuxiliaryLM]:
    """The goals of every batch besides its task's."""
    if not transfer.auxiliary_lm:
        return {}
    trained = (start.goals or {}).get("causal_lm")
    if not isinstance(trained, CausalLM) or not encoder.causal:
        raise BadConfig(
            "transfer.auxiliary_lm needs a model that predicts the next token, as gpt, gpt-2 and ulmfit do, with its "
            "own weights; leave it out."
        )
    head = make_goal("causal_lm", trained.config, encoder, start.tokenizer)
    head.load_state_dict(trained.state_dict())
    assert isinstance(head, CausalLM)
    return {NAME: AuxiliaryLM(head, weight=transfer.auxiliary_lm)}


def kept_heads(learner: Learner) -> dict[str, Objective]:
    """Heads that learned along and so still fit the encoder."""
    goals = [goal for goal in learner.auxiliary.values() if isinstance(goal, AuxiliaryLM)]
    return {"causal_lm": goals[0].head.cpu().eval()} if goals else {}
