"""A signed package repository of Alpine's own formats, made with openssl: for trying a real apk."""

import base64
import gzip
import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

# Path, content, mode, group. A directory's path ends in a slash; text is the path of what this is another name of.
Entry = tuple[str, bytes | str, int, int]


def new_key(at: Path) -> Path:
    """Make a key pair; the public half, which is returned, has the name that packages are signed with."""
    private, public = at / "test@example.org-1.rsa", at / "test@example.org-1.rsa.pub"
    for command in (["genrsa", "-out", private, "2048"], ["rsa", "-in", private, "-pubout", "-out", public]):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return public


def segment(entries: list[Entry], *, last: bool, checksums: bool = False) -> bytes:
    """One compressed tarball of those that make a package; only the last one has an end mark."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, source, mode, group in entries:
            info = tarfile.TarInfo(path.rstrip("/"))
            if isinstance(source, str):
                info.type, info.linkname = tarfile.LNKTYPE, source
            content = source if isinstance(source, bytes) else b""
            info.size, info.mode, info.gid, info.uname, info.gname = len(content), mode, group, "root", "root"
            if path.endswith("/"):
                info.type = tarfile.DIRTYPE
            elif checksums and info.isreg():
                info.pax_headers = {"APK-TOOLS.checksum.SHA1": hashlib.sha1(content).hexdigest()}
            archive.addfile(info, io.BytesIO(content))
        end = archive.offset
    return gzip.compress(made.getvalue() if last else made.getvalue()[:end])


def signed(data: bytes, public: Path) -> bytes:
    private = public.with_suffix("")
    line = ["openssl", "dgst", "-sha256", "-sign", private]
    signature = subprocess.run(line, input=data, capture_output=True, check=True).stdout
    return segment([(f".SIGN.RSA256.{public.name}", signature, 0o644, 0)], last=False) + data


class Repository:
    """Packages and their index, by path."""

    def __init__(self, base: str, arch: str, public: Path) -> None:
        self.files: dict[str, bytes] = {}
        self._base, self._arch, self._public = base, arch, public
        self._index = ""

    def add(self, name: str, entries: list[Entry], scripts: dict[str, str] | None = None) -> None:
        """Put a package into the repository."""
        data = segment(entries, last=True, checksums=True)
        fields = {
            "pkgname": name, "pkgver": "1.0-r0", "pkgdesc": name, "url": "http://example.org", "size": 100,
            "arch": self._arch, "origin": name, "license": "MIT", "datahash": hashlib.sha256(data).hexdigest(),
        }  # fmt: skip
        told = "".join(f"{field} = {value}\n" for field, value in fields.items())
        control = segment(
            [(".PKGINFO", told.encode(), 0o644, 0), *((n, s.encode(), 0o755, 0) for n, s in (scripts or {}).items())],
            last=False,
        )
        package = signed(control, self._public) + data
        self.files[f"{self._base}/{self._arch}/{name}-1.0-r0.apk"] = package
        identity = base64.b64encode(hashlib.sha1(control).digest()).decode()
        self._index += f"C:Q1{identity}\nP:{name}\nV:1.0-r0\nA:{self._arch}\nS:{len(package)}\nI:100\nT:{name}\n"
        self._index += f"U:http://example.org\nL:MIT\no:{name}\nt:1700000000\n\n"

    def finish(self) -> None:
        """Write the index."""
        body = segment([("DESCRIPTION", b"test", 0o644, 0), ("APKINDEX", self._index.encode(), 0o644, 0)], last=True)
        self.files[f"{self._base}/{self._arch}/APKINDEX.tar.gz"] = signed(body, self._public)
