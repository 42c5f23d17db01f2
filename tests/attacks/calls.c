/*
 * System calls that act on the machine, or that few programs need. Where success would do harm, the arguments make it
 * impossible: what is tried is whether the call gets to the kernel's own check of them.
 */
#include "attack.h"
#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/keyctl.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/io.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <time.h>

static long modules(char **a) { return reached(syscall(SYS_init_module, a, 0L, NULL)); }
static long modules_by_file(char **a) { (void)a; return reached(syscall(SYS_finit_module, -1, "", 0)); }
static long kexec(char **a) { return reached(syscall(SYS_kexec_load, 0L, 1L << 20, a, 0L)); }
static long swap(char **a) { (void)a; return reached(syscall(SYS_swapon, NULL, 0)); }
static long accounting(char **a) { (void)a; return reached(syscall(SYS_acct, "/no/such/file")); }
static long quota(char **a) { (void)a; return reached(syscall(SYS_quotactl, -1, NULL, 0, NULL)); }
static long kernel_log(char **a) { (void)a; return klogctl(10, NULL, 0); }
static long ports(char **a) { (void)a; return reached(iopl(3)); }

static long clock_day(char **a) {
    struct timeval impossible = { 0, -1 };
    (void)a;
    return reached(syscall(SYS_settimeofday, &impossible, NULL));
}

static long clock_time(char **a) {
    struct timespec impossible = { 0, -1 };
    (void)a;
    return reached(syscall(SYS_clock_settime, CLOCK_REALTIME, &impossible));
}

static long clock_tick(char **a) {
    struct timex impossible = { .modes = ADJ_TICK, .tick = 1 };
    (void)a;
    return reached(syscall(SYS_adjtimex, &impossible));
}

/* The same as clock_day by the number that 32-bit programs use; what it reads has to lie low. */
static long clock_day_32(char **a) {
    int *impossible = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    int result;
    (void)a;
    if (impossible == MAP_FAILED)
        return -1;
    impossible[1] = -1;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(79), "b"((int)(long)impossible), "c"(0) : "memory", "r8", "r9", "r10", "r11");
    errno = -result;
    return reached(result < 0 ? -1 : 0);
}

static long programs_in_the_kernel(char **a) {
    union bpf_attr attributes;
    (void)a;
    memset(&attributes, 0, sizeof attributes);
    attributes.map_type = BPF_MAP_TYPE_ARRAY;
    attributes.key_size = attributes.value_size = 4;
    attributes.max_entries = 1;
    return syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes);
}

static long perf(char **a) {
    struct perf_event_attr attributes = { .type = PERF_TYPE_SOFTWARE, .size = sizeof attributes, .config = PERF_COUNT_SW_CPU_CLOCK };
    (void)a;
    return syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0);
}

static long io_uring(char **a) {
    struct io_uring_params parameters;
    (void)a;
    memset(&parameters, 0, sizeof parameters);
    return syscall(SYS_io_uring_setup, 1, &parameters);
}

static long user_faults(char **a) { (void)a; return syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY); }
static long keyring(char **a) { (void)a; return syscall(SYS_add_key, "user", "pando-attack", "x", 1L, KEY_SPEC_PROCESS_KEYRING); }
static long keyring_of_a_session(char **a) { (void)a; return syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1); }
static long user_namespace(char **a) { (void)a; return unshare(CLONE_NEWUSER); }

static int idle(void *nothing) { (void)nothing; return 0; }

static long user_namespace_by_clone(char **a) {
    static char stack[65536];
    int status;
    pid_t child = clone(idle, stack + sizeof stack, CLONE_NEWUSER | SIGCHLD, NULL);
    (void)a;
    return child < 0 ? -1 : waitpid(child, &status, 0);
}

static long trace(char **a) {
    pid_t child = fork();
    (void)a;
    if (child == 0) {
        pause();
        _exit(0);
    }
    long result = ptrace(PTRACE_SEIZE, child, NULL, NULL);
    int error = errno;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    errno = error;
    return result;
}

static long raw_socket(char **a) { (void)a; return socket(AF_INET, SOCK_RAW, 1); }
static long packet_socket(char **a) { (void)a; return socket(AF_PACKET, SOCK_RAW, 0); }
static long list_sockets(char **a) { (void)a; return socket(AF_NETLINK, SOCK_RAW, 4); }
static long type_into_a_terminal(char **a) { (void)a; return reached(ioctl(0, 0x5412, "x")); }

/* Requests that the whole machine has a number of. */
static long asynchronous_requests(char **a) {
    aio_context_t context = 0;
    (void)a;
    return syscall(SYS_io_setup, 1, &context);
}

/* A program in the kernel, by the number of the option: one that takes every packet whole. */
static long socket_filter(char **a) {
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, 0xffffffff);
    struct sock_fprog program = { 1, &all };
    int fd = socket(AF_INET, SOCK_DGRAM, 0), one = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one))
        return -1;
    return setsockopt(fd, SOL_SOCKET, atoi(needed(a, 0)), &program, sizeof program);
}

/*
 * Sends to sockets of its own that nobody reads from, as many as it is told, and then counts what lies in them: whether
 * that is more than so many megabytes.
 */
static long hoard_in_sockets(char **a) {
    static char packet[32 << 10];
    int wanted = atoi(needed(a, 0)), most = atoi(needed(a, 1));
    int *sockets = calloc(wanted, sizeof *sockets);
    long kept = 0;
    for (int i = 0; i < wanted; i++) {
        struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t length = sizeof own;
        sockets[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        if (sockets[i] < 0 || bind(sockets[i], (struct sockaddr *)&own, length) || getsockname(sockets[i], (struct sockaddr *)&own, &length))
            return -1;
        for (int n = 0; n < 16; n++)
            sendto(sockets[i], packet, sizeof packet, 0, (struct sockaddr *)&own, length);
    }
    for (int i = 0; i < wanted; i++)
        for (long got; (got = recv(sockets[i], packet, sizeof packet, 0)) > 0; kept += got)
            ;
    printf("%ld bytes were kept\n", kept);
    errno = ENOMEM;
    return kept > (long)most << 20 ? 0 : -1;
}

/* Has as many descriptors on their way in sockets of its own as it is told, says so, and stays. */
static long descriptors_in_flight(char **a) {
    enum { EACH = 250 };
    int wanted = atoi(needed(a, 0)), sent = 0, all[EACH];
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files))
        return -1;
    files.rlim_cur = files.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &files))
        return -1;
    for (int i = 0; i < EACH; i++)
        all[i] = 0;
    for (int pair[2]; sent < wanted; sent += EACH) {
        char byte = 'x', control[CMSG_SPACE(sizeof all)] = { 0 };
        struct iovec bytes = { &byte, 1 };
        struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_len = CMSG_LEN(sizeof all);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        memcpy(CMSG_DATA(header), all, sizeof all);
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || sendmsg(pair[0], &message, 0) != 1)
            return -1;
    }
    printf("%d in flight\n", sent);
    fflush(stdout);
    for (;;)
        pause();
}

/* Takes down the network device that it has in any case. */
static long change_links(char **a) {
    struct ifreq request = { .ifr_name = "lo", .ifr_flags = 0 };
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    (void)a;
    return fd < 0 ? -1 : ioctl(fd, SIOCSIFFLAGS, &request);
}

static long priority(char **a) { (void)a; return setpriority(PRIO_PROCESS, 0, -20); }
static long real_time(char **a) { (void)a; return sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ 1 }); }
static long disk_priority(char **a) { (void)a; return syscall(SYS_ioprio_set, 1, 0, 1 << 13); }

/* Forks as often as its argument says; the children wait for its end. */
static long fork_bomb(char **a) {
    long wanted = atol(needed(a, 0)), made = 0;
    int error = 0, gate[2];
    if (pipe(gate))
        return -1;
    for (; made < wanted; made++) {
        pid_t child = fork();
        if (child < 0) {
            error = errno;
            break;
        }
        if (child == 0) {
            char byte;
            close(gate[1]);
            if (read(gate[0], &byte, 1) < 0)
                _exit(1);
            _exit(0);
        }
    }
    close(gate[1]);
    while (wait(NULL) > 0) {
    }
    errno = error;
    return made == wanted ? 0 : -1;
}

/* A line of as many processes as it is told, each the child of the one before. The last says that it is there. */
static long line(char **a) {
    for (long left = atol(needed(a, 0)); left > 0; left--) {
        pid_t child = fork();
        if (child < 0)
            return -1;
        if (child > 0)
            for (;;)
                pause();
    }
    printf("the end of the line\n");
    fflush(stdout);
    for (;;)
        pause();
}

/* Whether a set-user-id file made it root. */
static long set_user_id(char **a) {
    (void)a;
    errno = EPERM;
    return geteuid() == 0 && getuid() != 0 ? 0 : -1;
}

const struct attack calls[] = {
    { "modules", modules, 1 },
    { "modules-by-file", modules_by_file, 1 },
    { "kexec", kexec, 1 },
    { "swap", swap, 1 },
    { "accounting", accounting, 1 },
    { "quota", quota, 0 },
    { "kernel-log", kernel_log, 1 },
    { "ports", ports, 1 },
    { "clock-day", clock_day, 0 },
    { "clock-time", clock_time, 0 },
    { "clock-tick", clock_tick, 1 },
    { "clock-day-32", clock_day_32, 0 },
    { "bpf", programs_in_the_kernel, 1 },
    { "perf", perf, 1 },
    { "io-uring", io_uring, 1 },
    { "user-faults", user_faults, 1 },
    { "keyring", keyring, 1 },
    { "keyring-of-a-session", keyring_of_a_session, 1 },
    { "user-namespace", user_namespace, 0 },
    { "user-namespace-by-clone", user_namespace_by_clone, 0 },
    { "trace", trace, 0 },
    { "raw-socket", raw_socket, 0 },
    { "packet-socket", packet_socket, 0 },
    { "list-sockets", list_sockets, 0 },
    { "asynchronous-requests", asynchronous_requests, 0 },
    { "socket-filter", socket_filter, 0 },
    { "hoard-in-sockets", hoard_in_sockets, 0 },
    { "descriptors-in-flight", descriptors_in_flight, 0 },
    { "type-into-a-terminal", type_into_a_terminal, 0 },
    { "change-links", change_links, 0 },
    { "priority", priority, 1 },
    { "real-time", real_time, 1 },
    { "disk-priority", disk_priority, 1 },
    { "fork-bomb", fork_bomb, 0 },
    { "line", line, 0 },
    { "set-user-id", set_user_id, 0 },
    { 0 },
};
