"""Make and check signatures by a person's own key, with OpenSSH: agents and hardware keys work too.

A signature is for one purpose, so that a bundle's signature is not valid for a job. A file of allowed signers (`man
ssh-keygen`) says to whom a key belongs: each line has a name, then a public key.
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

BUNDLE, JOB, RESULT = "fumehood-bundle", "fumehood-job", "fumehood-result"  # purposes of a signature
_MAX_SIGNATURE = 64 << 10  # characters
_KEY = re.compile(rb"with (\S+ key \S+)")


class BadSignature(BadRequest):
    """There is a signature, but it does not fit what it is meant for."""


class Signer(Value):
    """The signer of something: the key's fingerprint, and a name if the file of allowed signers has one."""

    key: str
    name: str = ""

    @property
    def line(self) -> str:
        """The signer in words."""
        return f"signed by {printable(self.name)}" if self.name else f"signed by a key of nobody known here, {self.key}"


def sign(key: str, purpose: str, data: bytes) -> str:
    """Sign data with the key in a file; the file of a public key names a private key that an agent has."""
    done = _run_keygen("sign", "-n", purpose, "-f", os.path.expanduser(key), data=data)
    if done.returncode:
        raise BadRequest(
            f"{key} can't sign: {shorten(_complaint(done))}",
            hint="ssh-keygen -t ed25519 makes a key; ssh-add opens one",
        )
    return done.stdout.decode("ascii")


def signer_of(signature: str, purpose: str, data: bytes, signers: str = "") -> Signer:
    """Check a signature; return its signer, by a file of allowed signers; raise BadSignature if it is wrong."""
    if len(signature) > _MAX_SIGNATURE or not signature.isascii():
        raise BadSignature("this is not a signature", hint="have it signed again")
    with Closing(os.memfd_create("signature", os.MFD_CLOEXEC)) as file:
        os.write(file, signature.encode("ascii"))
        done = _run_keygen("check-novalidate", "-n", purpose, *_signature_option(file), data=data, descriptor=file)
        key = _KEY.search(done.stdout)
        if done.returncode or key is None:
            raise BadSignature(f"the signature is wrong: {shorten(_complaint(done))}", hint="it was changed on its way")
        return Signer(key=key[1].decode("ascii"), name=_signer_name(file, purpose, data, signers) if signers else "")


def _signature_option(file: int) -> tuple[str, str]:
    return "-s", f"/dev/fd/{file}"


def _signer_name(file: int, purpose: str, data: bytes, signers: str) -> str:
    """Return the first name in the file of allowed signers that the open signature is valid for; "" if none."""
    signers = os.path.expanduser(signers)
    if not os.access(signers, os.R_OK):
        raise BadRequest(f"the file of allowed signers can't be read: {signers}", hint="sign.signers names it")
    done = _run_keygen("find-principals", *_signature_option(file), "-f", signers, data=b"", descriptor=file)
    for name in [] if done.returncode else done.stdout.decode("utf-8", "replace").splitlines():
        arguments = ("-n", purpose, "-f", signers, "-I", name, *_signature_option(file))
        if not _run_keygen("verify", *arguments, data=data, descriptor=file).returncode:
            return name
    return ""


def _run_keygen(*arguments: str, data: bytes, descriptor: int = -1) -> subprocess.CompletedProcess[bytes]:
    program = next(iter(trusted_programs("ssh-keygen")), "")
    if not program:
        raise Unavailable("ssh-keygen is not installed: it makes and checks signatures", hint="install openssh-client")
    return subprocess.run(
        [program, "-Y", *arguments], input=data, capture_output=True, check=False,
        pass_fds=() if descriptor < 0 else (descriptor,),
        start_new_session=True,  # without a terminal: nobody is asked for a passphrase
    )  # fmt: skip


def _complaint(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode("utf-8", "replace").strip() or f"ssh-keygen ended with {done.returncode}"
