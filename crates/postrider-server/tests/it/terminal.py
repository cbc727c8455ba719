"""A program in a terminal, driven by lines on stdin and answered by lines of JSON on stdout.

python3 terminal.py PROGRAM ARGUMENT…
  wait TEXT       until the screen shows it
  wait-not TEXT   until the screen does not
  keys HEX        type these bytes
  size ROWS COLS  the window changes
  signal NUMBER   to the program
  look            at the screen
  end             until the program ends: its exit code, and whether the terminal is as it was
"""

import fcntl, json, os, pty, re, select, struct, sys, termios, time

WITHIN = 30
ROWS, COLUMNS = 30, 120


def resize(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Screen:
    """As much of a terminal as it takes to read what is drawn."""

    def __init__(self):
        self.raw = b""
        self.rest = ""
        self.cells, self.row, self.column = {}, 1, 1

    def feed(self, data):
        self.raw += data
        text = self.rest + data.decode(errors="replace")
        self.rest = ""
        while text:
            command = re.match(r"\x1b\[([?\d;]*)([A-Za-z])", text)
            if command:
                self.obey(*command.groups())
                text = text[command.end():]
            elif text[0] == "\x1b" and re.fullmatch(r"\x1b(\[[?\d;]*)?", text):
                self.rest, text = text, ""
            else:
                self.write(text[0])
                text = text[1:]

    def obey(self, numbers, letter):
        if letter == "H":
            self.row, self.column = [int(n or 1) for n in (numbers or "1;1").split(";")]
        elif letter == "J":
            self.cells.clear()

    def write(self, character):
        if character == "\n":
            self.row += 1
        elif character == "\r":
            self.column = 1
        else:
            self.cells[self.row, self.column] = character
            self.column += 1

    def text(self):
        lines = {}
        for (row, column), character in self.cells.items():
            lines.setdefault(row, {})[column] = character
        line = lambda cells: "".join(cells.get(at, " ") for at in range(1, max(cells) + 1)).rstrip()
        return "\n".join(line(lines[row]) for row in sorted(lines))


ours, theirs = pty.openpty()
resize(ours, ROWS, COLUMNS)
before = termios.tcgetattr(theirs)
pid = os.fork()
if pid == 0:
    os.login_tty(theirs)
    os.execv(sys.argv[1], sys.argv[1:])
screen = Screen()


def read_more(seconds):
    if select.select([ours], [], [], seconds)[0]:
        screen.feed(os.read(ours, 65536))


def read_all():
    while select.select([ours], [], [], 0)[0]:
        read_more(0)


def until(condition):
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        found = condition()
        if found is not None:
            return found
        read_more(0.02)
    return None


def exit_code():
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def end():
    code = until(exit_code)
    read_all()
    raw = screen.raw
    shown_again = raw.rfind(b"\x1b[?1049l") > raw.rfind(b"\x1b[?1049h") or b"\x1b[?1049h" not in raw
    cursor_again = raw.rfind(b"\x1b[?25h") > raw.rfind(b"\x1b[?25l") or b"\x1b[?25l" not in raw
    restored = termios.tcgetattr(theirs) == before and shown_again and cursor_again
    return {"exit": code, "restored": restored, "drew": b"\x1b[?1049h" in raw, "screen": screen.text(), "wrote": raw.decode(errors="replace")}


for line in sys.stdin:
    read_all()
    verb, _, rest = line.strip().partition(" ")
    answer = {}
    if verb == "wait":
        answer["seen"] = until(lambda: True if rest in screen.text() else None) or False
    elif verb == "wait-not":
        answer["seen"] = until(lambda: True if rest not in screen.text() else None) or False
    elif verb == "keys":
        os.write(ours, bytes.fromhex(rest))
    elif verb == "size":
        screen.cells.clear()
        resize(ours, *map(int, rest.split()))
    elif verb == "signal":
        os.kill(pid, int(rest))
    elif verb == "end":
        answer = end()
    answer.setdefault("screen", screen.text())
    print(json.dumps(answer), flush=True)
