/* The last step into the sandbox: confine writing to the directories that are named, then become the command.
 *
 *     guard DIRECTORY... -- PROGRAM ARGUMENT...
 *
 * Landlock forbids mounting, so that it can't be set before bubblewrap has done its work, and after that there is no
 * Python to call it: hence this program of a few system calls, without a C library, that is handed to bubblewrap in
 * memory. tools/guard compiles it into src/fumehood/linux/guards.py.
 */

typedef unsigned long word;

#if defined(__x86_64__)
enum { WRITE = 1, CLOSE = 3, EXECVE = 59, EXIT = 60, OPENAT = 257 };
static long call(long number, long a, long b, long c, long d)
{
	long result;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return result;
}
__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n\thlt\n");
#elif defined(__aarch64__)
enum { WRITE = 64, CLOSE = 57, EXECVE = 221, EXIT = 93, OPENAT = 56 };
static long call(long number, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tbl begin\n");
#endif

enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446 };
enum { GUARD_FD = 6, AT_FDCWD = -100, O_PATH_CLOEXEC = 010000000 | 02000000, EINVAL = 22 };

/* Rights of the interface, by the version that brought them. */
#define WRITE_FILE (1UL << 1)
#define TRUNCATE (1UL << 14)
#define ALWAYS (WRITE_FILE | 0x1ff0UL) /* removing and making, of every kind */
#define SINCE_2 (1UL << 13)            /* moving to another directory */
#define SINCE_3 TRUNCATE
#define SCOPES 3UL                     /* abstract sockets and signals of others; since 6 */

struct ruleset { word files, network, scoped; };
struct __attribute__((packed)) beneath { word allowed; int parent; };

static void fail(const char *what)
{
	word length = 0;
	while (what[length])
		length++;
	call(WRITE, 2, (long)what, (long)length, 0);
	call(EXIT, 125, 0, 0, 0);
}

static int is_end(const char *argument)
{
	return argument[0] == '-' && argument[1] == '-' && !argument[2];
}

static void allow(long rules, const char *path, word rights)
{
	struct beneath rule;
	long result;

	rule.parent = (int)call(OPENAT, AT_FDCWD, (long)path, O_PATH_CLOEXEC, 0);
	if (rule.parent < 0)
		return; /* not there: nothing to allow */
	rule.allowed = rights;
	result = call(ADD_RULE, rules, 1, (long)&rule, 0);
	if (result == -EINVAL) { /* a file, which has fewer rights */
		rule.allowed = rights & (WRITE_FILE | TRUNCATE);
		result = call(ADD_RULE, rules, 1, (long)&rule, 0);
	}
	if (result < 0)
		fail("fumehood: writing can't be confined\n");
	call(CLOSE, rule.parent, 0, 0, 0);
}

__attribute__((used)) void begin(word *stack)
{
	long count = (long)stack[0], at = 1, rules = -1;
	char **arguments = (char **)(stack + 1);
	char **environment = arguments + count + 1;
	long version = call(CREATE_RULESET, 0, 0, 1, 0);
	struct ruleset wanted;

	wanted.files = ALWAYS | (version >= 2 ? SINCE_2 : 0) | (version >= 3 ? SINCE_3 : 0);
	wanted.network = 0;
	wanted.scoped = version >= 6 ? SCOPES : 0;
	if (version >= 1)
		rules = call(CREATE_RULESET, (long)&wanted, version >= 6 ? 24 : version >= 4 ? 16 : 8, 0, 0);
	for (; at < count && !is_end(arguments[at]); at++)
		if (rules >= 0)
			allow(rules, arguments[at], wanted.files);
	if (rules >= 0) {
		if (call(RESTRICT_SELF, rules, 0, 0, 0) < 0)
			fail("fumehood: writing can't be confined\n");
		call(CLOSE, rules, 0, 0, 0);
	}
	call(CLOSE, GUARD_FD, 0, 0, 0);
	if (at + 1 >= count)
		fail("fumehood: there is no command\n");
	call(EXECVE, (long)arguments[at + 1], (long)(arguments + at + 1), (long)environment, 0);
	fail("fumehood: the command's shell can't be started\n");
}
