"""What is wrong with certificate files is said by the setting's name, before anybody connects."""

from dataclasses import replace

import pytest

from kvmesh.certificates import CertificateFiles
from tests.certificates import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def test_right_files_are_read(authority):
    files = authority.issue("router")
    held = files.load()
    assert (held.cert, held.key, held.ca) == tuple(
        path.read_bytes() for path in (files.cert, files.key, files.ca)
    )
    assert b"PRIVATE" not in repr(held).encode()


def test_a_missing_file_is_named(authority, tmp_path):
    for name in ("cert", "key", "ca"):
        files = replace(authority.issue("router"), **{name: tmp_path / "gone.pem"})
        with pytest.raises(ValueError, match=rf"^tls_{name}: cannot read .*gone.pem: No such file"):
            files.load()


def test_an_expired_certificate_is_named(authority):
    with pytest.raises(ValueError, match=r"^node_tls_cert: .*node\.pem has expired on 20"):
        authority.issue("node", days=-1, prefix="node_tls_").load()


def test_a_certificate_of_the_future_is_named(authority, monkeypatch):
    files = authority.issue("router")
    monkeypatch.setattr("kvmesh.certificates.time.time", lambda: 1e9)
    with pytest.raises(ValueError, match=r"^tls_cert: .* is not valid before 20"):
        files.load()


def test_a_key_of_another_certificate_is_named(authority):
    files = replace(authority.issue("router"), key=authority.issue("node").key)
    with pytest.raises(ValueError, match=r"^tls_key: .*node.key does not belong to tls_cert, "):
        files.load()


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff\xfe", b"-----BEGIN CERTIFICATE-----"])
def test_a_file_of_something_else_is_named(authority, content):
    for name, problem in (("cert", "no PEM certificate"), ("key", "not an unencrypted PEM key")):
        files = authority.issue("router")
        getattr(files, name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"^tls_{name}: .*{problem}"):
            files.load()


def test_half_a_pair_is_refused(authority):
    files = authority.issue("router")
    with pytest.raises(ValueError, match=r"^tls_key: must be set beside tls_cert"):
        CertificateFiles(cert=files.cert)
    with pytest.raises(ValueError, match=r"^tls_cert: must be set beside tls_key"):
        CertificateFiles(key=files.key)
    with pytest.raises(ValueError, match=r"^tls_cert: must be set beside tls_ca"):
        CertificateFiles(ca=files.ca).check_server()
