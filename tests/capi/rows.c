/* A row of table 1 a name: what a transaction covers is done inside one, and looked at afterwards.
 *   rows ROW commit|abort|conflict
 * Says nothing where all is as it has to be. */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pando.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static int failures;

#define WANT(what) (void)((what) || (failures++, fprintf(stderr, "line %d, committed %d: %s\n", __LINE__, committed, #what)))

static void put(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        err(2, "writing %s", path);
    close(fd);
}

static const char *get(const char *path)
{
    static char text[256];
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return strerror(errno);
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length < 0 ? 0 : length] = 0;
    return text;
}

static int is(const char *path, const char *text) { return strcmp(get(path), text) == 0; }
static int is_there(const char *path) { return faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0; }

static mode_t mode(const char *path)
{
    struct stat about;
    return lstat(path, &about) ? 0 : about.st_mode & 07777;
}

/* Files by path. */

static void files_before(void)
{
    put("written", "old"), put("cut", "0123456789"), put("gone", "g"), put("from", "f"), put("aged", "a"), put("over", "o");
    mkdir("emptied", 0755), put("linked", "l");
}

static void files(void)
{
    put("new", "n"), put("written", "changed");
    if (truncate("cut", 4) || unlink("gone") || rename("from", "to") || mkdir("made", 0750) || rmdir("emptied"))
        err(2, "names");
    if (link("linked", "second") || symlink("to", "symbolic") || chmod("aged", 0600) || chown("aged", 12, 34) || mkfifo("fifo", 0600))
        err(2, "attributes");
    struct timeval times[2] = {{1000, 0}, {2000, 0}};
    if (utimes("over", times) || setxattr("over", "user.word", "x", 1, 0))
        err(2, "times");
    put("made/inner", "i");
}

static void files_after(int committed)
{
    struct stat about;
    char value[8];
    WANT(is("new", "n") == committed && is("written", committed ? "changed" : "old"));
    WANT(is("cut", committed ? "0123" : "0123456789") && is_there("gone") == !committed);
    WANT(is_there("from") == !committed && is_there("to") == committed && is("made/inner", "i") == committed);
    WANT(is_there("emptied") == !committed && is_there("second") == committed && is_there("symbolic") == committed);
    WANT(mode("aged") == (committed ? 0600 : 0644) && is_there("fifo") == committed);
    WANT(lstat("aged", &about) == 0 && about.st_uid == (committed ? 12 : 0));
    WANT(lstat("linked", &about) == 0 && about.st_nlink == (committed ? 2 : 1));
    WANT(lstat("over", &about) == 0 && (about.st_mtime == 2000) == committed);
    WANT((getxattr("over", "user.word", value, sizeof value) == 1) == committed);
}

/* Descriptors that were open before. */

static int reader, writer, appender, twin, cutter, mapped;

static void descriptors_before(void)
{
    put("read", "0123456789"), put("write", "0123456789"), put("append", "a"), put("truncate", "0123456789"), put("map", "mapped");
    reader = open("read", O_RDONLY), writer = open("write", O_RDWR), appender = open("append", O_WRONLY | O_APPEND);
    cutter = open("truncate", O_RDWR | O_CLOEXEC), mapped = open("map", O_RDWR), twin = dup(writer);
    char two[2];
    if (read(reader, two, 2) != 2 || pwrite(writer, "AB", 2, 0) != 2 || lseek(writer, 3, SEEK_SET) != 3)
        err(2, "reading before");
}

static void descriptors(void)
{
    int committed = -1;
    char three[4] = "";
    WANT(read(reader, three, 3) == 3 && strcmp(three, "234") == 0);
    WANT(write(writer, "xy", 2) == 2 && lseek(twin, 0, SEEK_CUR) == 5 && write(twin, "z", 1) == 1);
    WANT(write(appender, "b", 1) == 1 && ftruncate(cutter, 2) == 0);
    /* By path it is the same file. */
    WANT(is("write", "AB2xyz6789") && is("append", "ab") && is("truncate", "01"));
    char *memory = mmap(NULL, 6, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    WANT(memory != MAP_FAILED && memcpy(memory, "MAPPED", 6) && munmap(memory, 6) == 0);
    fcntl(writer, F_SETFL, fcntl(writer, F_GETFL) | O_NONBLOCK);
    if (close(mapped))
        err(2, "closing");
}

static void descriptors_after(int committed)
{
    WANT(lseek(reader, 0, SEEK_CUR) == (committed ? 5 : 2) && lseek(writer, 0, SEEK_CUR) == (committed ? 6 : 3));
    WANT(lseek(twin, 0, SEEK_CUR) == lseek(writer, 0, SEEK_CUR));
    WANT(is("write", committed ? "AB2xyz6789" : "AB23456789") && is("append", committed ? "ab" : "a"));
    WANT(is("truncate", committed ? "01" : "0123456789") && is("map", committed ? "MAPPED" : "mapped"));
    WANT(!(fcntl(writer, F_GETFL) & O_NONBLOCK) == !committed && (fcntl(cutter, F_GETFD) & FD_CLOEXEC));
    /* Closed inside: it stays so, or is back. */
    WANT((fcntl(mapped, F_GETFD) < 0) == committed);
    /* They lead to the live files: what is written now is there. */
    WANT(pwrite(writer, "!", 1, 0) == 1 && write(appender, "c", 1) == 1 && lseek(twin, 1, SEEK_CUR) == lseek(writer, 0, SEEK_CUR));
    WANT(get("write")[0] == '!' && is("append", committed ? "abc" : "ac"));
}

/* Descriptors that are opened inside. */

static int inside_new, inside_old, inside_directory;

static void opened_before(void) { put("old", "0123456789"), mkdir("directory", 0755); }

static void opened(void)
{
    inside_new = open("fresh", O_RDWR | O_CREAT | O_EXCL, 0644), inside_old = open("old", O_RDWR), inside_directory = open("directory", O_RDONLY);
    if (write(inside_new, "new", 3) != 3 || pwrite(inside_old, "xx", 2, 4) != 2 || lseek(inside_old, 5, SEEK_SET) != 5)
        err(2, "writing inside");
}

static void opened_after(int committed)
{
    WANT((fcntl(inside_new, F_GETFD) >= 0) == committed && (fcntl(inside_old, F_GETFD) >= 0) == committed);
    WANT((fcntl(inside_directory, F_GETFD) >= 0) == committed);
    WANT(is("old", committed ? "0123xx6789" : "0123456789"));
    if (!committed)
        return;
    /* They lead to what was committed. */
    WANT(lseek(inside_old, 0, SEEK_CUR) == 5 && write(inside_old, "yy", 2) == 2 && write(inside_new, "er", 2) == 2);
    WANT(is("old", "0123xyy789") && is("fresh", "newer") && faccessat(inside_directory, ".", F_OK, 0) == 0);
    int file = openat(inside_directory, "by-directory", O_WRONLY | O_CREAT, 0644);
    WANT(file >= 0 && is_there("directory/by-directory"));
}

/* Where the process is, and its mask. */

static void places_before(void) { mkdir("sub", 0755), umask(022); }

static void places(void)
{
    umask(077);
    if (chdir("sub"))
        err(2, "going");
    put("here", "h");
}

static void places_after(int committed)
{
    char *at = get_current_dir_name();
    const char *last = strrchr(at, '/');
    WANT((strcmp(last, "/sub") == 0) == committed);
    mode_t mask = umask(022);
    WANT(mask == (committed ? 077 : 022));
    WANT(is(committed ? "here" : "sub/here", "h") == committed);
    WANT(!committed || mode("here") == 0600);
}

/* Who it is, and what it may have. */

static gid_t groups_before[64];
static int count_before;

static void identity_before(void) { count_before = getgroups(64, groups_before); }

static void identity(void)
{
    gid_t groups[2] = {7, 8};
    struct rlimit limit;
    if (setgroups(2, groups) || setresgid(-1, 1234, -1) || getrlimit(RLIMIT_CORE, &limit))
        err(2, "groups");
    limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? 4096 : limit.rlim_max / 2;
    if (setrlimit(RLIMIT_CORE, &limit) || setpriority(PRIO_PROCESS, 0, 5) || setresuid(-1, 1000, -1))
        err(2, "limits");
    int committed = -1;
    WANT(open("/etc/shadow", O_RDONLY) < 0 && errno == EACCES);
}

static void identity_after(int committed)
{
    gid_t groups[64];
    int count = getgroups(64, groups);
    WANT(geteuid() == (committed ? 1000 : 0) && getuid() == 0 && getegid() == (committed ? 1234 : 0));
    WANT(committed ? count == 2 && groups[1] == 8 : count == count_before && !memcmp(groups, groups_before, count * sizeof *groups));
    WANT(getpriority(PRIO_PROCESS, 0) == (committed ? 5 : 0));
    struct rlimit limit;
    WANT(getrlimit(RLIMIT_CORE, &limit) == 0 && (limit.rlim_cur == 4096 || limit.rlim_cur < limit.rlim_max) == committed);
    WANT((open("/etc/shadow", O_RDONLY) >= 0) == !committed);
}

static void limits_open(void)
{
    /* So that the row can tell what is set from what was. */
    struct rlimit limit;
    if (getrlimit(RLIMIT_CORE, &limit) == 0)
        limit.rlim_cur = limit.rlim_max, setrlimit(RLIMIT_CORE, &limit);
    identity_before();
}

/* Processes that are made inside. */

static void processes_before(void) { put("counted", "0"); }

static void processes(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        put("counted", "1");
        put("forked", "f");
        _exit(pando_tx_status() == PANDO_TX_PART && pando_tx_begin(0) == PANDO_TX_ERROR && pando_tx_end() == PANDO_TX_ERROR ? 7 : 8);
    }
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7)
        errx(2, "a child has ended with %d", status);
    child = vfork();
    if (child == 0) {
        execlp("sh", "sh", "-c", "echo -n executed >executed; cat counted >copied", NULL);
        _exit(9);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        errx(2, "a program has ended with %d", status);
}

static void processes_after(int committed)
{
    WANT(is("counted", committed ? "1" : "0") && is("forked", "f") == committed);
    WANT(is("executed", "executed") == committed && is("copied", "1") == committed);
}

/* Handlers, and locks that are held. */

static volatile sig_atomic_t first, second;
static void on_first(int signal) { (void)signal, first++; }
static void on_second(int signal) { (void)signal, second++; }
static int locked;

static void signals_before(void)
{
    signal(SIGUSR1, on_first);
    put("lock", "");
    locked = open("lock", O_RDWR);
    if (flock(locked, LOCK_EX))
        err(2, "locking");
}

static void signals(void)
{
    signal(SIGUSR1, on_second), signal(SIGUSR2, on_second);
    raise(SIGUSR1);
    if (second != 1 || first != 0)
        errx(2, "a signal did not come");
}

static void signals_after(int committed)
{
    raise(SIGUSR1);
    WANT(first == (committed ? 0 : 1) && second == (committed ? 2 : 1));
    struct sigaction action;
    WANT(sigaction(SIGUSR2, NULL, &action) == 0 && (action.sa_handler == on_second) == committed);
    int other = open("lock", O_RDWR);
    WANT(flock(other, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK);
}

static const struct {
    const char *name;
    void (*before)(void), (*work)(void), (*after)(int);
} rows[] = {
    {"files", files_before, files, files_after},
    {"descriptors", descriptors_before, descriptors, descriptors_after},
    {"opened", opened_before, opened, opened_after},
    {"places", places_before, places, places_after},
    {"identity", limits_open, identity, identity_after},
    {"processes", processes_before, processes, processes_after},
    {"signals", signals_before, signals, signals_after},
};

/* Somebody outside, who writes to a file when he is told. */
static int tell[2], told[2];

static void outsider(void)
{
    char byte;
    if (pipe(tell) || pipe(told))
        err(2, "pipes");
    if (fork() == 0) {
        close(tell[1]), close(told[0]);
        if (read(tell[0], &byte, 1) == 1)
            put("guard", "outside"), (void)!write(told[1], "x", 1);
        _exit(0);
    }
    close(tell[0]), close(told[1]);
}

int main(int argc, char **argv)
{
    char byte;
    if (argc != 3)
        errx(2, "a row, and how it is to end");
    for (size_t at = 0; at < sizeof rows / sizeof *rows; at++) {
        if (strcmp(rows[at].name, argv[1]))
            continue;
        put("guard", "inside");
        outsider();
        rows[at].before();
        if (pando_tx_begin(0) != 0)
            errx(2, "begin: %s", pando_tx_reason());
        if (!is("guard", "inside") || pando_tx_status() != PANDO_TX_ACTIVE)
            errx(2, "not inside");
        char guard[4096];
        if (!realpath("guard", guard))
            err(2, "realpath");
        rows[at].work();
        int committed = !strcmp(argv[2], "commit"), result;
        if (!strcmp(argv[2], "conflict") && (write(tell[1], "x", 1) != 1 || read(told[0], &byte, 1) != 1))
            err(2, "telling the one outside");
        result = strcmp(argv[2], "abort") ? pando_tx_end() : pando_tx_abort(1);
        if (result != (strcmp(argv[2], "conflict") ? PANDO_TX_COMMITTED : PANDO_TX_CONFLICT))
            errx(2, "it ended with %d: %s", result, pando_tx_reason());
        if (result == PANDO_TX_CONFLICT && strcmp(pando_tx_object(), guard))
            errx(2, "the conflict is about %s: %s", pando_tx_object(), pando_tx_reason());
        if (pando_tx_status() != PANDO_TX_NONE)
            errx(2, "still inside");
        rows[at].after(committed);
        return failures ? 1 : 0;
    }
    errx(2, "there is no row %s", argv[1]);
}
