package main

import (
	"encoding"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestInvalidNumbers: for every flag of every verb that takes a number or a duration, the error names the invalid value and
// what is wanted, and a negative number is taken as a value and not as a flag.
func TestInvalidNumbers(t *testing.T) {
	t.Parallel()
	parser, found := newParser(), 0
	for _, verb := range parser.Model.Leaves(false) {
		for _, f := range verb.Flags {
			kind := f.Target.Type()
			if kind.Kind() == reflect.Pointer {
				kind = kind.Elem()
			}
			wrong, below := []string{"x", "1.5.", "9e99999"}, "-1"
			switch {
			case reflect.PointerTo(kind).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
				below = "-1h"
			case kind == reflect.TypeFor[time.Duration]():
				wrong, below = append(wrong, "5", "-5", "99999999h"), "-1s"
			case kind.Kind() == reflect.Int || kind.Kind() == reflect.Int64:
				// kong reads the last five like Go literals, the first of them as 8.
				wrong = append(wrong, "1.5", "1s", "99999999999999999999", "-99999999999999999999", "010", "-010", "0x10", "0b1", "1_000")
			case kind.Kind() != reflect.Float64:
				continue
			}
			found++
			verbs := withoutPlaceholders(strings.Fields(verb.FullPath()))
			for _, value := range wrong {
				_, err := parser.Parse(append(verbs, "--"+f.Name, value))
				if err == nil || !strings.Contains(err.Error(), "--"+f.Name+`: "`+value+`" is not a `) || !strings.Contains(err.Error(), "; want one such as ") ||
					strings.Contains(err.Error(), "${") {
					t.Errorf("%s --%s %s: %v", verb.FullPath(), f.Name, value, err)
				}
			}
			if _, err := parser.Parse(append(verbs, "--"+f.Name, below)); err != nil && strings.Contains(err.Error(), "short flag") {
				t.Errorf("%s --%s %s: %v", verb.FullPath(), f.Name, below, err)
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d flags take numbers", found)
	}
}

// TestInvalidVariableIsNamed, because no flag was given. If one was, the variable is not to blame.
func TestInvalidVariableIsNamed(t *testing.T) {
	for _, test := range []struct{ variable, value, args, want string }{
		{"USAGE_DAYS", "-1", "serve", "--usage-days (from USAGE_DAYS): -1 is not between 0 and 36500 days; want"},
		{"USAGE_DAYS", "010", "serve", `--usage-days: "010" is not a whole number in plain decimal digits, or is too large; want one such as 90 (from envar USAGE_DAYS="010")`},
		{"USAGE_DAYS", "1", "serve --usage-days -1", "--usage-days: -1 is not"},
		{"USAGE_DAYS", "5", "serve --usage-days x", `--usage-days: "x" is not`},
		{"USAGE_DAYS", "5", "serve --usage-days=x", `--usage-days: "x" is not`},
		{"NATS_TLS_KEY", "numbers_test.go", "show -- --nats-tls-key", "--nats-tls-key (from NATS_TLS_KEY) must be set together"},
		{"CLEANUP_EVERY", "1m", "serve --cleanup-every x", `--cleanup-every: "x" is not`},
		{"NATS_URL", "nats://127.0.0.1:1", "list --nats-url=", "--nats-url: is empty"},
		{"NATS_CREDS", "numbers_test.go", "list --nats-creds /nope", "--nats-creds: stat /nope"},
		{"HTTP_ADDR", "off", "serve --http=", "--http: is empty"},
		{"DATABASE_URL", "postgres://127.0.0.1:1/x", "serve --database-url=", "--database-url: is empty"},
		{"USAGE_KEYS", "-1", "serve --http off", "--usage-keys (from USAGE_KEYS): -1 is not between 0 and 10000000; want"},
		{"CLEANUP_EVERY", "5", "serve", `--cleanup-every: "5" is not a duration with a unit; want one such as 60s (from envar CLEANUP_EVERY="5")`},
		{"CLEANUP_EVERY", "48h", "serve", "--cleanup-every (from CLEANUP_EVERY): 48h0m0s is neither"},
		{"WARNING_THRESHOLD", "2", "serve --http off", "--warning-threshold (from WARNING_THRESHOLD): 2 is not between 0 and 1; want"},
		{"ON_ERROR", "x", "serve", `--on-error (from ON_ERROR) must be one of`},
		{"ALERTS_ALLOW", "x", "serve", `--alerts-allow (from ALERTS_ALLOW): "x" is not an address`},
		{"HTTP_ADDR", "x", "serve", `--http (from HTTP_ADDR): "x" is not host:port`},
		{"NATS_URL", "nats://127.0.0.1:1", "list --nats-urll x", `unknown flag --nats-urll, did you mean "--nats-url"?`},
		{"NATS_TLS_KEY", "numbers_test.go", "show k", "--nats-tls-key (from NATS_TLS_KEY) must be set together"},
	} {
		t.Run(test.variable+" "+test.args, func(t *testing.T) {
			t.Setenv(test.variable, test.value)
			limiter(t, strings.Fields(test.args)...).want(t, exitUsage, "", test.want)
		})
	}
	t.Run("of another flag with the same beginning", func(t *testing.T) {
		t.Setenv("ALERTS", "numbers_test.go")
		limiter(t, "serve", "--alerts-allow", "x").want(t, exitUsage, "", `limiter: --alerts-allow: "x" is not an address`)
	})
}
