"""What a program in Python sees of a transaction. They need root, the command (``PANDO_COMMAND``, or in the path) and libpando."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

COMMAND = os.environ.get("PANDO_COMMAND") or shutil.which("pando")


@unittest.skipUnless(COMMAND, "the command is not there: set PANDO_COMMAND")
@unittest.skipUnless(os.geteuid() == 0, "transactions need root")
class Transactions(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.root = tempfile.mkdtemp(prefix="pando-python-")
        os.environ["PANDO_ROOT"] = cls.root
        cls.daemon = subprocess.Popen([str(COMMAND), "--root", cls.root, "daemon"], stderr=subprocess.DEVNULL)
        for _ in range(500):
            if os.path.exists(f"{cls.root}/run/pando/pando.sock"):
                break
            time.sleep(0.02)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.daemon.terminate()
        cls.daemon.wait()
        shutil.rmtree(cls.root, ignore_errors=True)

    def setUp(self) -> None:
        # Not before the environment says which Pando.
        import pando

        self.pando = pando
        self.directory = Path(tempfile.mkdtemp(prefix="files-", dir=self.root))
        self.file = self.directory / "file"
        self.file.write_text("before")

    def outside(self, text: str) -> None:
        """Has somebody outside write to the file: a process that was there before cannot be had inside."""
        self.told.stdin.write(text)
        self.told.stdin.close()
        self.told.wait()

    def somebody(self) -> None:
        self.told = subprocess.Popen(["sh", "-c", f"cat >{self.file}.new; cat {self.file}.new >{self.file}"], stdin=subprocess.PIPE, text=True)

    def test_the_end_of_a_block_commits(self) -> None:
        with self.pando.transaction(durable=True):
            self.file.write_text("inside")
            self.assertEqual(self.pando.status(), self.pando.Status.ACTIVE)
        self.assertEqual(self.file.read_text(), "inside")
        self.assertEqual(self.pando.status(), self.pando.Status.NONE)

    def test_an_exception_aborts(self) -> None:
        with open(self.file, "r+") as opened:
            opened.read(3)
            place = os.lseek(opened.fileno(), 0, os.SEEK_CUR)
            with self.assertRaisesRegex(KeyError, "mine"):
                with self.pando.transaction():
                    os.write(opened.fileno(), b"inside")
                    os.mkdir(self.directory / "made")
                    raise KeyError("mine")
            self.assertEqual(os.lseek(opened.fileno(), 0, os.SEEK_CUR), place)
        self.assertEqual(self.file.read_text(), "before")
        self.assertFalse((self.directory / "made").exists())

    def test_a_conflict_names_what_others_have_changed(self) -> None:
        self.somebody()
        with self.assertRaises(self.pando.Conflict) as raised:
            with self.pando.transaction():
                self.file.read_text()
                self.outside("outside")
                (self.directory / "made").touch()
        self.assertEqual(raised.exception.object, str(self.file))
        self.assertIn("changed by others", str(raised.exception))
        self.assertFalse((self.directory / "made").exists())

    def test_a_function_runs_again(self) -> None:
        self.somebody()
        tries = []

        @self.pando.transaction(retry=3)
        def append(text: str) -> int:
            """Adds to the file."""
            tries.append(text)
            seen = self.file.read_text()
            if len(tries) == 1:
                self.outside("outside")
            self.file.write_text(seen + text)
            return len(tries)

        self.assertEqual(append("+"), 2)
        self.assertEqual((self.file.read_text(), append.__doc__), ("outside+", "Adds to the file."))

    def test_a_block_in_a_loop_runs_again(self) -> None:
        self.somebody()
        for attempt in self.pando.transaction(retry=2):
            with attempt:
                seen = self.file.read_text()
                if attempt.number == 0:
                    self.outside("outside")
                self.file.write_text(seen + "+")
        self.assertEqual((attempt.number, self.file.read_text()), (1, "outside+"))

    def test_programs_inside_are_a_part_of_it(self) -> None:
        with self.assertRaises(ZeroDivisionError):
            with self.pando.transaction():
                subprocess.run(["sh", "-c", f"echo inside >{self.file}; test -s {self.file}"], check=True)
                self.assertEqual(self.file.read_text(), "inside\n")
                1 / 0
        self.assertEqual(self.file.read_text(), "before")

    def test_what_is_wrong_is_said(self) -> None:
        with self.assertRaisesRegex(self.pando.PandoError, "do not nest"):
            with self.pando.transaction():
                with self.pando.transaction():
                    pass
        with self.assertRaises(ValueError):
            self.pando.transaction(retry=-1)
        self.assertEqual(self.pando.status(), self.pando.Status.NONE)


if __name__ == "__main__":
    unittest.main()
