// The one program of the guest whose state is kept: without a C library, so that it is small.
//
//   /program              keeps a word in memory alone, and tells it whenever it is asked
//   /program ask          asks, and prints the answer
//   /program write TEXT   writes a file of the guest's
//   /program read         prints that file

#define SYS_read 0
#define SYS_write 1
#define SYS_open 2
#define SYS_close 3
#define SYS_nanosleep 35
#define SYS_exit 60
#define SYS_unlink 87
#define SYS_rename 82

static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static unsigned long length(const char *text) {
    unsigned long count = 0;
    while (text[count]) count++;
    return count;
}

static int is(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

static void sleep_a_moment(void) {
    long time[2] = {0, 20000000};
    call(SYS_nanosleep, (long)time, 0, 0);
}

// O_WRONLY | O_CREAT | O_TRUNC
static void write_file(const char *path, const char *text) {
    long file = call(SYS_open, (long)path, 01 | 0100 | 01000, 0644);
    call(SYS_write, file, (long)text, length(text));
    call(SYS_close, file, 0, 0);
}

static long read_file(const char *path, char *into, long most) {
    long file = call(SYS_open, (long)path, 0, 0), count;
    if (file < 0) return -1;
    count = call(SYS_read, file, (long)into, most);
    call(SYS_close, file, 0, 0);
    return count;
}

// Written while it runs: no file has it.
static char word[16];

static void keep(void) {
    const char letters[] = "lfqu";
    for (int at = 0; at < 4; at++) word[at] = letters[at] - 1;
    word[4] = '\n';
    for (;;) {
        sleep_a_moment();
        if (call(SYS_unlink, (long)"/ask", 0, 0) == 0) {
            write_file("/.told", word);
            call(SYS_rename, (long)"/.told", (long)"/told", 0);
        }
    }
}

static int print(const char *path, int tries) {
    char text[64];
    while (tries-- > 0) {
        long count = read_file(path, text, sizeof text);
        if (count >= 0) {
            call(SYS_write, 1, (long)text, count);
            return 0;
        }
        sleep_a_moment();
    }
    return 1;
}

__attribute__((used)) static int begin(long *stack) {
    char **words = (char **)(stack + 1);
    if (stack[0] < 2) keep();
    if (is(words[1], "write") && stack[0] == 3) {
        write_file("/written", words[2]);
        return 0;
    }
    if (is(words[1], "read")) return print("/written", 1);
    call(SYS_unlink, (long)"/told", 0, 0);
    write_file("/ask", "");
    return print("/told", 1000);
}

__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n\tmov %eax, %edi\n\tmov $60, %eax\n\tsyscall\n");
