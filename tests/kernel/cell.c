/* CL.THROTTLE as redis-cell has it, for tests: that module is written in Rust, and its packages are not to be had where tests run. GCRA by the wall
 * clock: key, max burst, count, period (s), quantity; the reply is limited (0, 1), limit, remaining, retry after (s, -1), reset after (s). Only the few
 * functions of Redis's module interface that it needs, which a module asks for by name through the first word of its context. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Ctx Ctx;
typedef struct String String;
typedef int (*Command)(Ctx *, String **, int);

static int (*create)(Ctx *, const char *, Command, const char *, int, int, int);
static void (*attribs)(Ctx *, const char *, int, int);
static int (*reply_array)(Ctx *, long);
static int (*reply_number)(Ctx *, long long);
static int (*reply_error)(Ctx *, const char *);
static int (*wrong_arity)(Ctx *);
static int (*to_number)(const String *, long long *);
static const char *(*text)(const String *, size_t *);

static struct { char key[64]; int64_t due_ns; } cells[1024];	/* when the next would be due, had there been no burst */
static int used;

static int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static int find(const char *key)
{
	for (int i = 0; i < used; i++)
		if (!strcmp(cells[i].key, key))
			return i;
	strncpy(cells[used].key, key, 63);
	return used < 1023 ? used++ : used;
}

static int64_t seconds(int64_t ns)
{
	return ns > 0 ? (ns + 999999999) / 1000000000 : 0;
}

static int throttle(Ctx *ctx, String **argv, int argc)
{
	long long burst, count, period, asked = 1;
	size_t n;
	if (argc != 5 && argc != 6)
		return wrong_arity(ctx);
	if (to_number(argv[2], &burst) || to_number(argv[3], &count) || to_number(argv[4], &period) || (argc > 5 && to_number(argv[5], &asked)) ||
	    burst < 0 || count < 1 || period < 1 || asked < 0)
		return reply_error(ctx, "ERR invalid argument");
	int64_t now = now_ns(), each = period * 1000000000ll / count, most = each * (burst + 1);
	int64_t *due = &cells[find(text(argv[1], &n))].due_ns;
	int64_t from = *due > now ? *due : now, next = from + each * asked;
	int limited = next - now > most;
	int64_t retry = limited && each * asked <= most ? seconds(next - most - now) : -1;
	if (!limited)
		from = *due = next;
	reply_array(ctx, 5);
	reply_number(ctx, limited);
	reply_number(ctx, burst + 1);
	reply_number(ctx, (most - (from - now)) / each);
	reply_number(ctx, retry);
	return reply_number(ctx, seconds(from - now));
}

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc)
{
	int (*get)(const char *, void *) = ((void **)ctx)[0];
	get("RedisModule_CreateCommand", &create);
	get("RedisModule_SetModuleAttribs", &attribs);
	get("RedisModule_ReplyWithArray", &reply_array);
	get("RedisModule_ReplyWithLongLong", &reply_number);
	get("RedisModule_ReplyWithError", &reply_error);
	get("RedisModule_WrongArity", &wrong_arity);
	get("RedisModule_StringToLongLong", &to_number);
	get("RedisModule_StringPtrLen", &text);
	attribs(ctx, "cell", 1, 1);
	return create(ctx, "cl.throttle", throttle, "write", 1, 1, 1);
}
