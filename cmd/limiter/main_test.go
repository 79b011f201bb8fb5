package main

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits/internal/app"
	"github.com/seed503877ad/limits/internal/testenv"
)

func TestMain(m *testing.M) {
	for _, name := range []string{"NATS_URL", "DATABASE_URL", "HTTP_ADDR"} { // of whoever runs the tests
		_ = os.Unsetenv(name)
	}
	testenv.Main(m)
}

// noon is the time in the tests of tables.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.FixedZone("", 3600))

// output collects what a verb prints, while another goroutine may read it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	said func(text string) // when not nil, told all of it with each write
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.text.Write(p)
	if o.said != nil {
		o.said(o.text.String())
	}
	return n, err
}

// listen makes said receive the output from now on.
func (o *output) listen(said func(text string)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.said = said
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// invocation is one run of the command line.
type invocation struct {
	stdin    string
	in       io.Reader // instead of stdin
	tty      bool
	ctx      context.Context
	status   int
	out, err output
	to       io.Writer // instead of out
}

func (i *invocation) run(t testing.TB, args ...string) *invocation {
	t.Helper()
	if i.ctx == nil { // bounded, so that a verb that hangs fails its own test
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		i.ctx = ctx
	}
	parser := takeParser()
	defer putParser(parser)
	i.status = run(parser, args, &session{
		ctx: i.ctx, in: cmp.Or[io.Reader](i.in, strings.NewReader(i.stdin)), out: &stdout{to: cmp.Or[io.Writer](i.to, &i.out)}, err: &i.err, inTTY: i.tty, errTTY: i.tty,
		now: func() time.Time { return noon },
	})
	return i
}

// parsers is a pool of parsers. Making parsers took most of the processor time of these tests.
var parsers = make(chan *kong.Kong, 4)

func takeParser() *kong.Kong {
	select {
	case p := <-parsers:
		return p
	default:
		return newParser()
	}
}

// putParser resets which flags were given. Parse resets only their values.
func putParser(p *kong.Kong) {
	_ = kong.Visit(p.Model.Node, func(node kong.Visitable, next kong.Next) error {
		if v, ok := node.(*kong.Value); ok {
			v.Set, v.Active = false, false
		}
		return next(nil)
	})
	select {
	case parsers <- p:
	default:
	}
}

// TestParserKeepsNoFlagsBetweenRuns: flags of one invocation are not set in the next.
func TestParserKeepsNoFlagsBetweenRuns(t *testing.T) {
	for range cap(parsers) + 1 {
		limiter(t, "settle", "job", "--cost", "1", "--nats-url", "nats://127.0.0.1:1").want(t, exitError, "", "connect to")
	}
	for range cap(parsers) + 1 {
		limiter(t, "settle", "job").want(t, exitUsage, "", "missing flags: --cost")
		limiter(t, "settle", "--cost", "1").want(t, exitUsage, "", "<id>")
	}
}

// begin runs an invocation in the background.
func (i *invocation) begin(t *testing.T, args ...string) (ended <-chan struct{}) {
	end := make(chan struct{})
	go func() { defer close(end); i.run(t, args...) }()
	return end
}

// start runs an invocation in the background, and waits until it writes to its err.
func (i *invocation) start(t *testing.T, says string, args ...string) (ended <-chan struct{}) {
	t.Helper()
	said := make(chan struct{})
	once := sync.OnceFunc(func() { close(said) })
	i.err.said = func(text string) {
		if strings.Contains(text, says) {
			once()
		}
	}
	ended = i.begin(t, args...)
	select {
	case <-said:
	case <-ended:
		t.Fatalf("%q ended with status %d: %s", args, i.status, i.err.String())
	case <-time.After(time.Minute):
		t.Fatalf("%q did not say %q in a minute: %s", args, says, i.err.String())
	}
	return ended
}

func limiter(t testing.TB, args ...string) *invocation {
	t.Helper()
	return new(invocation).run(t, args...)
}

// want checks the exit status and the outputs. out and err are parts of the expected outputs; empty means no output.
func (i *invocation) want(t testing.TB, status int, out, err string) {
	t.Helper()
	if i.status != status {
		t.Errorf("exit status %d, want %d", i.status, status)
	}
	if !strings.Contains(i.out.String(), out) || (out == "" && i.out.String() != "") {
		t.Errorf("out: %q, want %q in it", i.out.String(), out)
	}
	if !strings.Contains(i.err.String(), err) || (err == "" && i.err.String() != "") {
		t.Errorf("err: %q, want %q in it", i.err.String(), err)
	}
}

func TestWrongUsage(t *testing.T) {
	tests := []struct{ args, message string }{
		{"bogus", "unexpected argument bogus\nsee: limiter --help"},
		{"consum k --limit 5 --window 1m", "unexpected argument consum, did you mean \"consume\"?\nsee: limiter --help"},
		{"key list", "unexpected argument key, did you mean \"keys\"?\nsee: limiter --help"},
		{"--http off consum", "unexpected argument consum\nsee: limiter --help"},
		{"serve consume", "unexpected argument consume\nsee: limiter --help"},
		{"--nope", "unknown flag --nope\nsee: limiter serve --help"},
		{"--log-level loud", "--log-level must be one of"},
		{"--on-error panic", "--on-error must be one of"},
		{"--warning-threshold 1.5", "--warning-threshold: 1.5 is not between 0 and 1"},
		{"--warning-threshold NaN", "--warning-threshold: NaN is not between 0 and 1"},
		{"--nats-creds /does/not/exist", "/does/not/exist"},
		{"consume", "KEY, --limit (1 or more) and --window are required"},
		{"consume k --limit 5", "see: limiter consume --help"},
		{"consume k --limit -5 --window 1m", "--limit: -5 is below 1; want one such as 100"},
		{"consume k --limit five --window 1m", `--limit: "five" is not a whole number`},
		{"consume k --limit 5 --window 1m --cost 0", "--cost: 0 is below 1"},
		{"consume k --limit 5 --window 1m --algorithm leaky", `--algorithm: "leaky" is not one of sliding_window`},
		{"consume k --limit 5 --window 1m --consistency eventual", `--consistency: "eventual" is not one of exact, leased`},
		{"consume k --limit 5 --window 1m --timeout 0s", "--timeout: 0s is not above 0"},
		{"consume k --request {}", "--request is the whole request"},
		{"consume --request {} -a user=7", "--request is the whole request"},
		{"consume --request {} --id order-17", "--request is the whole request"},
		{"record --request {} --cost 3", "--request is the whole request"},
		{"refund --request {} --cost 1", "--request is the whole request"},
		{"consume k --policy p", "replace KEY and the limit flags"},
		{"record --policy p --burst 1", "replace KEY and the limit flags"},
		{"consume --policy p --limit 0", "replace KEY and the limit flags"},
		{"check -a user=7 --burst 0", "replace KEY and the limit flags"},
		{"refund --request {} --limit 0", "--request is the whole request"},
		{"record --request {} --burst 0", "--request is the whole request"},
		{"consume k --limit 0 --window 1m", "--limit: 0 is below 1; want one such as 100"},
		{"check --tier PRO", "--tier requires --policy or -a"},
		{"refund -a user", "--attribute: expected NAME=VALUE"},
		{"check -a user=7 -a user=8", "--attribute: user is given twice"},
		{"consume -a user=7 --policy p -a user=7", "--attribute: user is given twice"},
		{"keys create --user 7 -a plan=a -a plan=b", "--attribute: plan is given twice"},
		{"consume k --limit 5 --window 1m --id=", "--id: is empty; omit it or give a value"},
		{"keys create --user=", "--user: is empty\n"},
		{"show a b", "unexpected argument b"},
		{"list --max 1001", "--max: 1001 is not between 1 and 1000"},
		{"list --max 0", "--max: 0 is not between 1 and 1000"},
		{"reset", "one of KEY, --prefix and --all is required"},
		{"reset k --prefix p", "only one of KEY, --prefix and --all is allowed"},
		{"reset --prefix p --all", "only one of KEY, --prefix and --all is allowed"},
		{"watch --count=-1", "--count: -1 is below 1"},
		{"watch --count 0", "--count: 0 is below 1; leave it out to watch until interrupted"},
		{"bench --connections 5 --in-flight 4", "each connection needs at least one"},
		{"bench --connections 0", "--connections: 0 is below 1"},
		{"bench --keys 0", "--keys: 0 is not between"},
		{"bench --limit 0", "--limit: 0 is not between 1 and "},
		{"top --since 0s", `--since: "0s" is not a duration from 100ms to 366d`},
		{"top --since 1h30m", `--since: "1h30m" is not a duration from 100ms to 366d; want one such as 30m, 1h or 7d`},
		{"usage errors --since 1.5h", `--since: "1.5h" is not a duration from 100ms to 366d`},
		{"top --since 1x", `--since: "1x" is not a duration from 100ms to 366d`},
		{"usage errors --since 367d", `--since: "367d" is not a duration from 100ms to 366d`},
		{"show k --nats-tls-cert main_test.go", "--nats-tls-cert and --nats-tls-key must be set together"},
		{"bench --duration 0s", "--duration: 0s is not above 0"},
		{"serve --source %zz", `invalid settings: --source: source "%zz" is not a URI`},
		{"serve --nats-url ,", `--nats-url: "," contains no server`},
		{"serve --nats-url nats://h:99999", "--nats-url: the port in a server URL is not a number from 1 to 65535; want nats://host:port"},
		{"serve --nats-url nats://:4222", "--nats-url: a server URL has no host; want nats://host:port, such as nats://127.0.0.1:4222"},
		{"show k --nats-url nats://h,nats://", "--nats-url: a server URL has no host"},
		{"serve --nats-url h,::1", "--nats-url: a server URL has too many colons; want nats://host:port, or nats://[::1]:4222 for an IPv6 address"},
		{"serve --nats-url nats://h,http://h:8222", "--nats-url: unsupported scheme in a server URL; want nats://host:port, such as nats://127.0.0.1:4222, or one that begins with tls://"},
		{"serve --source a{b}", `invalid settings: --source: source "a{b}" is not a URI`},
		{"serve --source http://", `invalid settings: --source: source "http://" cannot be the base of schema URLs; want a host`},
		{"serve --source https://x/y?z", `source "https://x/y?z" cannot be the base of schema URLs`},
		{"serve --key-prefix Lim", `--key-prefix: key prefix "Lim": want 1 to 16 lower case`},
		{"serve --hash-key secret", "--hash-key: 6 bytes is too short"},
		{"serve --database-url mysql://db", "--database-url: read database URL"},
		{"migrate status --database-url mysql://db", "--database-url: read database URL"},
		{"serve --http 127.0.0.1:65536", `--http: the port of "127.0.0.1:65536" is not a number from 0 to 65535`},
		{"serve --nats-listen off", `--nats-listen: "off" is not host:port, such as 127.0.0.1:4222`},
		{"serve --nats-url ::bad", "--nats-url: the URL is malformed"},
		{"serve --http 8080", `--http: "8080" is not host:port`},
		{"serve --nats-inbox-prefix limits.x", `--nats-inbox-prefix: "limits.x" cannot be a prefix`},
		{"bench --nats-inbox-prefix a.>", "--nats-inbox-prefix"},
		{"show k --nats-inbox-prefix a..b", "want one such as _INBOX_check"},
		{"--data-dir=", "--data-dir: is empty; omit it or give a value\nsee: limiter serve --help"},
		{"reset u:\xfd", `"u:\xfd" is not valid UTF-8`},
		{"overrides set p minute u:\xfd --limit 1 --reason x", "is not valid UTF-8"},
		{"alerts silence --for 1h --reason x --user=u\xfd", "is not valid UTF-8"},
		{"migrate", `"up"`},
		{"healthcheck --timeout 0s", "--timeout: 0s is not above 0; want one such as 3s"},
		{"healthcheck --http 8080", `--http: "8080" is not host:port, such as 127.0.0.1:8080`},
		{"healthcheck --http h:99999", `--http: the port of "h:99999" is not a number from 0 to 65535`},
		{"migrate up", "--database-url"},
		{"migrate down --database-url postgres://x", "see: limiter migrate down --help"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			i := limiter(t, strings.Fields(tt.args)...)
			i.want(t, exitUsage, "", tt.message)
			if said := i.err.String(); strings.Count(said, "see: limiter ") != 1 || !strings.HasSuffix(said, " --help\n") {
				t.Errorf("err: %q; want the way to --help", said)
			}
		})
	}
}

// TestEmptyArgumentsAreRefused: a script whose variable is not set must not get the answer to another request.
func TestEmptyArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	parser, refused := newParser(), 0
	for _, verb := range parser.Model.Leaves(false) {
		path := withoutPlaceholders(strings.Fields(verb.Path()))
		refuse := func(what string, args ...string) {
			t.Helper()
			if _, err := parser.Parse(slices.Concat(path, args)); err == nil || !strings.HasPrefix(err.Error(), what+": is empty") {
				t.Errorf("%q %q: %v", path, args, err)
			}
			refused++
		}
		for _, f := range verb.Flags {
			switch {
			case f.IsBool():
			case f.Name == "after": // a list begins there, and so may a script that goes through its pages
				if _, err := parser.Parse(slices.Concat(path, []string{"--after="})); err != nil {
					t.Errorf("%q --after=: %v", path, err)
				}
			default:
				refuse("--"+f.Name, "--"+f.Name+"=")
			}
		}
		for n, arg := range verb.Positional {
			refuse(arg.ShortSummary(), append(slices.Repeat([]string{"main_test.go"}, n), "")...)
		}
	}
	if refused < 100 {
		t.Errorf("only %d", refused)
	}
}

func TestEveryVerbHasHelpWithExamples(t *testing.T) {
	for _, verb := range newParser().Model.Leaves(false) {
		path := strings.Fields(verb.Path())
		i := limiter(t, append(withoutPlaceholders(path), "--help")...)
		i.want(t, exitDone, "Examples:", "")
		i.want(t, exitDone, "limiter "+strings.Join(withoutPlaceholders(path), " "), "")
	}
	limiter(t, "--help").want(t, exitDone, "migrate status", "")
	t.Setenv("NATS_URL", "")
	limiter(t, "serve", "--help").want(t, exitDone, "($NATS_URL)", "") // also an empty variable is one that can be set
}

// withoutPlaceholders returns the verbs of a path such as "limiter show <key>".
func withoutPlaceholders(path []string) (verbs []string) {
	for _, word := range path {
		if word != "limiter" && !strings.ContainsAny(word, "<[") {
			verbs = append(verbs, word)
		}
	}
	return verbs
}

func TestServeOptions(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://u:p@db/limits")
	t.Setenv("HTTP_ADDR", "off")
	t.Setenv("SOURCE", "//limits.example")
	t.Setenv("NATS_LISTEN", "127.0.0.1:1")
	parse := func(args ...string) app.Options {
		var c commands
		parser, err := kong.New(&c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(args); err != nil {
			t.Fatal(err)
		}
		o, err := c.Serve.options()
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	o := parse("--nats-listen", "127.0.0.1:0", "--warning-threshold", "0.2", "--usage-keys", "7")
	o.Version = ""
	want := o
	want.DatabaseURL, want.HTTPAddr, want.Source = "postgres://u:p@db/limits", "off", "//limits.example"
	want.NATSListen, want.WarningThreshold, want.UsageKeys = "127.0.0.1:0", 0.2, 7
	want.DataDir, want.OnError, want.NATSURL, want.Alerter = "./data", "allow", "", "auto"
	if !reflect.DeepEqual(o, want) {
		t.Errorf("got %+v, want %+v", o, want)
	}
	if byName := parse("serve", "--nats-listen", "127.0.0.1:0", "--warning-threshold", "0.2"); byName.NATSListen != o.NATSListen {
		t.Errorf("with the verb: %+v", byName)
	}
}

// TestAnEmptyVariableIsUnset: if all variables are set but empty, the result is the same as without them.
func TestAnEmptyVariableIsUnset(t *testing.T) {
	serve := func() app.Options {
		parser := newParser()
		if _, err := parser.Parse(nil); err != nil {
			t.Fatal(err)
		}
		o, err := parser.Model.Target.Addr().Interface().(*commands).Serve.options()
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	help := limiter(t, "serve", "--help").out.String()
	variables := map[string]bool{}
	for _, verb := range newParser().Model.Leaves(false) {
		for _, f := range verb.Flags {
			for _, name := range f.Envs {
				variables[name] = true
				t.Setenv(name, "") // which puts back at the end what whoever runs the tests has
				_ = os.Unsetenv(name)
			}
		}
	}
	want := serve()
	for name := range variables {
		t.Setenv(name, "")
	}
	if got := serve(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// Twice, because parsers are reused.
	for range 2 {
		limiter(t, "serve", "--help").want(t, exitDone, help, "")
		limiter(t, "show", "a", "--nats-url", "nats://127.0.0.1:1").want(t, exitError, "", "connect to")
		limiter(t, "watch", "--nats-url", "nats://127.0.0.1:1").want(t, exitError, "", "connect to")
		limiter(t, "migrate", "status").want(t, exitUsage, "", "missing flags: --database-url")
	}
	t.Setenv("HTTP_ADDR", "off")
	limiter(t, "healthcheck").want(t, exitError, "", "--http is off")
}

func TestErrorWhenNoServerIsRunning(t *testing.T) {
	for _, args := range []string{"consume k --limit 1 --window 1m", "show k", "list", "reset k", "watch", "bench"} {
		i := limiter(t, append(strings.Fields(args), "--nats-url", "nats://me:secret@127.0.0.1:1")...)
		i.want(t, exitError, "", "connect to nats://***@127.0.0.1:1: ")
		i.want(t, exitError, "", "is a limiter running? start one with: limiter")
	}
	nc := testenv.NATS(t)
	limiter(t, "show", "k", "--nats-url", nc.ClientURL()).want(t, exitError, "", "no limiter is listening on this NATS server")
	for _, args := range []string{"alerts list", "alerts test-send", "jobs run expire"} {
		limiter(t, append(strings.Fields(args), "--nats-url", nc.ClientURL())...).want(t, exitError, "", "no alerter is listening on this NATS server; start a limiter with --alerter on, or")
	}
}

func TestPasswordsStayHidden(t *testing.T) {
	for url, status := range map[string]int{
		"nats://me:secret@127.0.0.1:1": exitError, "nats://secret@127.0.0.1:1": exitError, "me:secret@127.0.0.1:1": exitError,
		"me:12/secret@127.0.0.1:1": exitError, "nats://me:secret%zz@127.0.0.1:1": exitUsage, "nats://me:secret/x@127.0.0.1:1": exitUsage,
		"me:secret/x@127.0.0.1:1": exitUsage, "nats://me:secret,x@127.0.0.1:1": exitUsage, "nats://me:secret": exitUsage,
	} {
		i := limiter(t, "show", "k", "--nats-url", url)
		if i.status != status || strings.Contains(i.out.String()+i.err.String(), "secret") {
			t.Errorf("%s: exit status %d, err %q", url, i.status, i.err.String())
		}
	}
	for url, status := range map[string]int{
		"postgres://u:secret@127.0.0.1:1/db": exitError, "host=127.0.0.1 port=1 password=secret": exitError,
		"postgres://u:secret%zz@127.0.0.1/db": exitUsage, "postgres://u:12/secret@127.0.0.1:1/db": exitUsage,
		"postgres://u:x@secret@127.0.0.1:1/db": exitUsage,
	} {
		i := limiter(t, "migrate", "status", "--database-url", url)
		if i.status != status || strings.Contains(i.out.String()+i.err.String(), "secret") {
			t.Errorf("%s: exit status %d, err %q", url, i.status, i.err.String())
		}
	}
}

func TestVersion(t *testing.T) {
	i := limiter(t, "version")
	i.want(t, exitDone, "limiter ", "")
	limiter(t, "--version").want(t, exitDone, i.out.String(), "")
}

func TestFilesForNATSMustExist(t *testing.T) {
	ca := written(t, "ca.pem", "no certificate")
	limiter(t, "show", "k", "--nats-url", testenv.NATS(t).ClientURL(), "--nats-tls-ca", ca).want(t, exitError, "", "connect to")
}

// respond simulates a limiter that answers subject with the result of the handler.
func respond(t *testing.T, subject string, handler func(request string) *nats.Msg) (url string) {
	t.Helper()
	url = testenv.NATS(t).ClientURL()
	respondAt(t, url, subject, handler)
	return url
}

// respondAt is respond on an existing server.
func respondAt(t *testing.T, url, subject string, handler func(request string) *nats.Msg) {
	t.Helper()
	nc := testenv.Connect(t, url)
	_, err := nc.Subscribe(subject, func(m *nats.Msg) { _ = m.RespondMsg(handler(string(m.Data))) })
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

func text(json string) func(string) *nats.Msg {
	return func(string) *nats.Msg { return &nats.Msg{Data: []byte(json)} }
}

// TestTimeoutBoundsConnecting to a server that accepts connections and never answers.
func TestTimeoutBoundsConnecting(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begin := time.Now()
	limiter(t, "show", "k", "--timeout", "50ms", "--nats-url", "nats://"+silent.Addr().String()).want(t, exitError, "", "connect to")
	if took := time.Since(begin); took >= connectTimeout {
		t.Errorf("it took %v", took)
	}
}
