"""A chat template is code by strangers: it writes text, and reaches nothing else."""

import pytest

from kvmesh.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'].getcwd() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ '{0.__class__.__mro__}'.format('x') }}",
        "{{ 'x'|attr('__class__') }}",
        "{{ messages|map(attribute='__class__')|list }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ messages[0].pop('role') }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
    ],
)
def test_a_hostile_template_is_refused_or_sees_nothing(source):
    try:
        text = ChatTemplate(source).render(MESSAGES, {})
    except ValueError:
        return
    assert text.strip() in ("", "[, ]", "[]", "[Undefined]"), text


def test_what_the_messages_say_is_not_a_template():
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}{{ extra }}")
    hostile = "{{ 1 + 1 }}{% for %}"
    text = template.render([{"role": "user", "content": hostile}], {"extra": hostile})
    assert text == hostile * 2
    assert MESSAGES == [{"role": "user", "content": "hi"}]
