"""Every command in README and guide works as it stands."""

import shlex
from itertools import groupby

import pytest

from tests.docs.commands import (
    ROOT,
    Command,
    each_once,
    english_documents,
    in_a_line,
    read_commands,
)
from tests.docs.reader import Reader
from tests.docs.tables import ALSO_IN_TABLES, ELSEWHERE, INTERACTIVE, QUICK
from tests.e2e.serving import Serving, poll
from tests.kvmesh.terminal import Terminal

pytestmark = pytest.mark.timeout(300)

COMMANDS = each_once(each for path in english_documents() for each in read_commands(path))
TYPED = [each for each in COMMANDS if in_a_line(each.text) in INTERACTIVE]
RUN = [each for each in COMMANDS if in_a_line(each.text) not in {**ELSEWHERE, **INTERACTIVE}]
CHAPTERS = {file: list(each) for file, each in groupby(RUN, lambda command: command.file)}
ALONE = CHAPTERS.pop("README.md")


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    with Serving() as fleet:
        yield Reader(fleet, tmp_path_factory.mktemp("repository"))


@pytest.mark.parametrize("command", ALONE, ids=str)
def test_a_command_of_the_readme_works(reader, command):
    run(reader, command)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_commands_of_a_chapter_work_in_order(reader, chapter):
    """One may need what another has left."""
    for command in CHAPTERS[chapter]:
        run(reader, command)


def run(reader, command):
    poll(reader.fleet.all_up, 60)  # a command before may have killed a node
    quick = QUICK.get(in_a_line(command.text))
    reader.run(command if quick is None else Command(quick, command.file, "sh"))


@pytest.mark.parametrize("command", TYPED, ids=str)
async def test_a_command_for_a_terminal_works(reader, command):
    typed = INTERACTIVE[in_a_line(command.text)]
    program, *arguments = shlex.split(command.text, comments=True)
    assert program == "kvmesh"
    async with Terminal(*arguments, KVMESH_ROUTER=reader.fleet.grpc_target) as terminal:
        await terminal.until(typed.waits_for)
        terminal.type(typed.keys)
        await terminal.until(typed.sees)
        terminal.type(typed.leaves_by)
        assert await terminal.end() == 0


@pytest.mark.parametrize("command", ELSEWHERE)
def test_what_runs_elsewhere_is_there(command):
    for place in ELSEWHERE[command]:
        lines = (ROOT / place.file).read_text().splitlines()
        assert any(place.has in line for line in lines if not line.lstrip().startswith("#")), place


def test_tables_name_commands_that_are_there():
    known = {in_a_line(each.text) for each in COMMANDS if each.language == "sh"}
    assert [name for table in ALSO_IN_TABLES for name in table if name not in known] == []


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("kvmesh generate --wings 2 hello", "sh"),
        ("kvmesh bench wings", "sh"),  # 2 is also what a wrong flag exits with
        ("curl -s http://127.0.0.1:8000/nothing | cat", "sh"),
        ("from kvmesh.client import Wings", "python"),
    ],
)
def test_a_command_that_fails_is_noticed(reader, text, language):
    with pytest.raises(AssertionError, match=text.split()[0]):
        reader.run(Command(text, "a document", language))
