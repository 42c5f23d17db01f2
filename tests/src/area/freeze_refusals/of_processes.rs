//! Processes and threads that cannot be frozen, whatever they have open.

use super::kinds::{Kind, by, kind, late, told};

/// Processes and threads by themselves.
pub(super) const PROCESSES: &[Kind] = &[
    kind(
        "child(lambda: None)\nassert libc.ptrace(0x4206, next(pid for pid in others() if status(pid, 'PPid') == str(os.getpid())), 0, 0) == 0",
        &["it is being traced", "end the debugger"],
    ),
    late(kind(
        "def two():\n    threading.Thread(target=lingers, daemon=True).start()\npid = child(two)\n\
         thread = max(int(tid) for tid in os.listdir(f'/proc/{pid}/task'))\nassert libc.ptrace(0x4206, thread, 0, 0) == 0",
        &["it is being traced", "end the debugger"],
    )),
    kind(
        "def strict(reader, place):\n    code = b'\\xb8' + struct.pack('I', 157) + b'\\xbf' + struct.pack('I', 22) + b'\\xbe\\1\\0\\0\\0\\x0f\\x05'\n\
         \x20   run(code + b'\\x31\\xc0\\xbf' + struct.pack('I', reader) + b'\\x48\\xbe' + struct.pack('Q', place) + b'\\xba\\1\\0\\0\\0\\x0f\\x05\\xeb\\xe6')\n\
         reader, writer = os.pipe()\nplace = memory(PAGE)\npid = os.fork()\nif pid == 0:\n    strict(reader, place)\n\
         while status(pid, 'Seccomp') != '1':\n    time.sleep(0.01)",
        &["it is in strict seccomp mode", "make the program use a filter"],
    ),
    kind(
        "pid = os.fork()\nif pid == 0:\n    threading.Thread(target=lingers, daemon=True).start()\n    call(60, 0)\n\
         while status(pid, 'State')[0] != 'Z':\n    time.sleep(0.01)",
        &["its first thread has ended before the others", "wait for the others"],
    ),
    kind(
        "pid = os.fork()\nif pid == 0:\n    run(b'\\xb8\\x3a\\0\\0\\0\\x0f\\x05\\x85\\xc0\\x75\\x09\\xb8\\x22\\0\\0\\0\\x0f\\x05\\xeb\\xf7\\xc3')\n\
         while not open(f'/proc/{pid}/task/{pid}/children').read():\n    time.sleep(0.01)",
        &["memory that it shares with process", "make the program use threads"],
    ),
    kind(
        "if call(56, 0x400 | signal.SIGCHLD, 0, 0, 0, 0) == 0:\n    lingers()",
        &["a table of descriptors that it shares with process"],
    ),
    kind(
        "if call(56, 0x200 | signal.SIGCHLD, 0, 0, 0, 0) == 0:\n    lingers()",
        &["a working directory and a umask that it shares with process"],
    ),
    kind(
        "kept = threading.Thread(target=lambda: (apart(0x200), say('apart', ''), lingers()), daemon=True)\nkept.start()\n\
         wait_for(STAGE + '/apart')",
        &["a thread with a working directory and a umask of its own", "use processes for that"],
    ),
    kind(
        "kept = threading.Thread(target=lambda: (apart(0x400), say('apart', ''), lingers()), daemon=True)\nkept.start()\n\
         wait_for(STAGE + '/apart')",
        &["a thread with a table of descriptors of its own"],
    ),
    by(
        "narrow",
        kind(
            "pid = os.fork()\nif pid == 0:\n    os.execv(STAGE + '/narrow', ['narrow', 'stay'])\n\
             while status(pid, 'Name') != 'narrow':\n    time.sleep(0.01)",
            &["a program of 32 bits", "use the one for 64 bits"],
        ),
    ),
    told(kind(
        "ruleset = call(444, struct.pack('QQQ', 1 << 11, 0, 0), 24, 0)\nlibc.prctl(38, 1, 0, 0, 0)\ncall(446, ruleset, 0)\nos.close(ruleset)",
        &["a Landlock domain of its own", "start the program without that confinement"],
    )),
    told(kind("call(250, 0, -1, 1)", &["keys of its own (keyctl)", "use the keys of its user"])),
    told(kind(
        "call(157, 59, 1, 0, 1 << 62, 0)",
        &["system calls that it handles itself (PR_SET_SYSCALL_USER_DISPATCH)"],
    )),
    told(kind(
        "call(154, 1, struct.pack('IIII', 0, 0, 0xfffff, 81), 16)",
        &["a table of segments of its own (modify_ldt)"],
    )),
    kind(
        "jail = STAGE + '/jail'\nos.mkdir(jail)\nchild(lambda: os.chroot(jail))\nos.rmdir(jail)",
        &["it has a root directory of its own that no path leads to", "start the program without chroot"],
    ),
    kind(
        "try:\n    kept = call(434, os.getpid(), os.O_EXCL)\nexcept OSError as why:\n    raise Lacks(why)",
        &["descriptor", "a descriptor of a thread", "close it"],
    ),
];
