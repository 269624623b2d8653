"""Checks that need a card. Where there is none they are listed as skipped, each with its reason."""

import random
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
REASON = "needs a GPU: torch sees no CUDA device"


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="session")
def card() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def generator(request) -> torch.Generator:
    """On the CPU. Another one each run; its seed is in the output of a test that fails."""
    seed = random.SystemRandom().randrange(2**31)
    print(f"{request.node.name}: seed {seed}")
    return torch.Generator().manual_seed(seed)
