"""Signatures by a person's own key, as OpenSSH makes and checks them: agents and keys in hardware work too.

A signature is made for one purpose, so that one of a bundle is none of a job. Whom a key belongs to is said by a file
of allowed signers (`man ssh-keygen`): a name, then a public key, on each line.
"""

from __future__ import annotations

import os
import re
import subprocess

from fumehood.core.report import printable, shorten
from fumehood.core.value import Value
from fumehood.errors import BadRequest, Unavailable
from fumehood.linux.bwrap import trusted_programs
from fumehood.linux.libc import Closing

BUNDLE, JOB, RESULT = "fumehood-bundle", "fumehood-job", "fumehood-result"  # what a signature can be for
_LONGEST = 64 << 10  # letters of a signature
_KEY = re.compile(rb"with (\S+ key \S+)")


class BadSignature(BadRequest):
    """There is a signature, and it is not one of what it stands with."""


class Signer(Value):
    """Who signed something: a name, if the file of allowed signers has one, and the key's fingerprint."""

    key: str
    name: str = ""

    @property
    def line(self) -> str:
        """It in words."""
        return f"signed by {printable(self.name)}" if self.name else f"signed by a key of nobody known here, {self.key}"


def sign(key: str, purpose: str, data: bytes) -> str:
    """Sign something with the key in a file; a public key's file stands for one that an agent has."""
    done = _keygen("sign", "-n", purpose, "-f", os.path.expanduser(key), data=data)
    if done.returncode:
        raise BadRequest(
            f"{key} can't sign: {shorten(_said(done))}", hint="ssh-keygen -t ed25519 makes a key; ssh-add opens one"
        )
    return done.stdout.decode("ascii")


def signer_of(signature: str, purpose: str, data: bytes, signers: str = "") -> Signer:
    """Check a signature, and say whose it is by a file of allowed signers; raises BadSignature."""
    if len(signature) > _LONGEST or not signature.isascii():
        raise BadSignature("the signature is not one", hint="have it signed again")
    with Closing(os.memfd_create("signature", os.MFD_CLOEXEC)) as file:
        os.write(file, signature.encode("ascii"))
        where = f"/dev/fd/{file}"
        done = _keygen("check-novalidate", "-n", purpose, "-s", where, data=data, descriptor=file)
        key = _KEY.search(done.stdout)
        if done.returncode or key is None:
            raise BadSignature(f"the signature is wrong: {shorten(_said(done))}", hint="it was changed on its way")
        return Signer(key=key[1].decode("ascii"), name=_name(where, purpose, data, signers, file) if signers else "")


def _name(where: str, purpose: str, data: bytes, signers: str, file: int) -> str:
    signers = os.path.expanduser(signers)
    if not os.access(signers, os.R_OK):
        raise BadRequest(f"the file of allowed signers can't be read: {signers}", hint="sign.signers names it")
    done = _keygen("find-principals", "-s", where, "-f", signers, data=b"", descriptor=file)
    for name in [] if done.returncode else done.stdout.decode("utf-8", "replace").splitlines():
        arguments = ("-n", purpose, "-f", signers, "-I", name, "-s", where)
        if not _keygen("verify", *arguments, data=data, descriptor=file).returncode:
            return name
    return ""


def _keygen(*arguments: str, data: bytes, descriptor: int = -1) -> subprocess.CompletedProcess[bytes]:
    program = next(iter(trusted_programs("ssh-keygen")), "")
    if not program:
        raise Unavailable("ssh-keygen is not here, which signs and checks", hint="install openssh-client")
    return subprocess.run(
        [program, "-Y", *arguments], input=data, capture_output=True, check=False,
        pass_fds=() if descriptor < 0 else (descriptor,),
        start_new_session=True,  # without a terminal: nobody is asked for a passphrase
    )  # fmt: skip


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode("utf-8", "replace").strip() or f"ssh-keygen ended with {done.returncode}"
