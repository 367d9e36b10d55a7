/* CL.THROTTLE as redis-cell has it, for tests: that module is written in Rust, and its packages are not to be had where tests run. A bucket without
 * refill, which is enough for prime counts: key, max burst, count, period, quantity. Only the few functions of Redis's module interface that it needs,
 * which a module asks for by name through the first word of its context. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct Ctx Ctx;
typedef struct String String;
typedef int (*Command)(Ctx *, String **, int);

static int (*create)(Ctx *, const char *, Command, const char *, int, int, int);
static void (*attribs)(Ctx *, const char *, int, int);
static int (*reply_array)(Ctx *, long);
static int (*reply_number)(Ctx *, long long);
static const char *(*text)(const String *, size_t *);

static struct { char key[64]; long left; } buckets[256];
static int used;

static long number(String *s)
{
	size_t n;
	return strtol(text(s, &n), 0, 10);
}

static int throttle(Ctx *ctx, String **argv, int argc)
{
	size_t n;
	const char *key = argc > 4 ? text(argv[1], &n) : "";
	long burst = argc > 4 ? number(argv[2]) : 0, asked = argc > 5 ? number(argv[5]) : 1;
	int i = 0;
	while (i < used && strcmp(buckets[i].key, key))
		i++;
	if (i == used && used < 255) {
		strncpy(buckets[used].key, key, 63);
		buckets[used++].left = burst + 1;
	}
	int limited = buckets[i].left < asked;
	if (!limited)
		buckets[i].left -= asked;
	reply_array(ctx, 5);
	reply_number(ctx, limited);
	reply_number(ctx, burst + 1);
	reply_number(ctx, buckets[i].left);
	reply_number(ctx, limited ? 2 : -1);
	return reply_number(ctx, 30);
}

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc)
{
	int (*get)(const char *, void *) = ((void **)ctx)[0];
	get("RedisModule_CreateCommand", &create);
	get("RedisModule_SetModuleAttribs", &attribs);
	get("RedisModule_ReplyWithArray", &reply_array);
	get("RedisModule_ReplyWithLongLong", &reply_number);
	get("RedisModule_StringPtrLen", &text);
	attribs(ctx, "cell", 1, 1);
	return create(ctx, "cl.throttle", throttle, "write", 1, 1, 1);
}
