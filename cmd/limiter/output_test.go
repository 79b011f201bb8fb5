package main

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed503877ad/limits"
)

// failing is a standard output that cannot be written.
type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }

const evilEvent = `{"specversion":"1.0","id":"1","type":"limits.exceeded","subject":"api:\u001b]0;x\u0007\nb\tc` + "\u009b" + `31m",` +
	`"time":"2026-03-01T11:00:00Z","data":{"limit":5,"window":"1m","denied":3,"retryAfter":9000}}`

func TestUnwritableOutputIsAnError(t *testing.T) {
	pages := 0
	t.Setenv("NATS_URL", respond(t, "limits.>", func(string) *nats.Msg {
		pages++
		return text(`{"allowed":false,"key":"k","counters":[{"key":"k"}],"rows":[{"key":"k"}],"runs":[{"job":"expire"}],"next":"k"}`)("")
	}))
	for _, args := range []string{
		"version", "--version", "--help", "top --help", "list --max 1", "list --json", "list", "show k --json", "show k", "top", "jobs history",
		"consume k --limit 1 --window 1m", "alerts validate ../../examples/alerts.yaml",
	} {
		pages = 0
		i := &invocation{to: failing{syscall.ENOSPC}}
		i.run(t, strings.Fields(args)...).want(t, exitError, "", "limiter: the output is incomplete: no space left on device\n")
		if pages > 2 {
			t.Errorf("%s: asked for %d pages that nobody sees", args, pages)
		}
		// A reader that has seen enough is no error to print.
		i = &invocation{to: failing{syscall.EPIPE}}
		i.run(t, strings.Fields(args)...).want(t, exitError, "", "")
	}
}

func TestWatchEndsWhenOutputFails(t *testing.T) {
	i := watchOne(t, respond(t, "unused", text("")), "limits.exceeded", evilEvent, failing{syscall.ENOSPC}, "--count", "1000")
	i.want(t, exitError, "", "no space left on device")
}

// The key is not stored anywhere, so the error names its id, with which it can be revoked.
func TestUnprintedKeyIsNamed(t *testing.T) {
	url := respond(t, limits.SubjectKeysCreate, text(`{"apiKey":"lim_4fJq01Zx_x","key":{"id":"4fJq01Zx","user":"7"}}`))
	for _, args := range []string{"keys create --user 7", "keys create --user 7 --json"} {
		for _, err := range []error{syscall.ENOSPC, syscall.EPIPE} {
			i := &invocation{to: failing{err}}
			i.run(t, append(strings.Fields(args), "--nats-url", url)...).want(t, exitError, "", "revoke it with: limiter keys revoke 4fJq01Zx\n")
		}
	}
}

// Other people choose keys, users and more. Their texts must not control a terminal, or make a line or a column.
func TestControlCharactersAreNotShown(t *testing.T) {
	const evil, tame = `a\u001b[2J\nb\tc`, "a\uFFFD[2J\uFFFDb\uFFFDc"
	reply := strings.ReplaceAll(`{"since":1,"counters":[{"key":"@","name":"1m"}],"rows":[{"key":"@"}],"traffic":[{"key":"@"}],"alerts":[{"user":"@"}],`+
		`"jobs":[{"name":"@"}],"runs":[{"job":"x","note":"@"}],"keys":[{"id":"@"}],"overrides":[{"reason":"@"}]}`, "@", evil)
	url := respond(t, "limits.>", text(reply))
	for _, args := range []string{"list", "top", "usage traffic", "alerts list", "jobs list", "jobs history", "keys list", "overrides list"} {
		limiter(t, append(strings.Fields(args), "--nats-url", url)...).want(t, exitDone, tame, "")
		limiter(t, append(strings.Fields(args), "--json", "--nats-url", url)...).want(t, exitDone, reply+"\n", "")
	}
	url = respond(t, "limits.>", text(`{"deliveries":[],"alert":{"title":"`+evil+`","text":"`+evil+`"}}`))
	limiter(t, "alerts", "show", "x", "--nats-url", url).want(t, exitDone, "a\uFFFD[2J\nb\tc\n", "")
	url = respond(t, "limits.>", text(`{"run":{"outcome":"failed","error":"`+evil+`"}}`))
	limiter(t, "jobs", "run", "x", "--nats-url", url).want(t, exitError, "", "a\uFFFD[2J\nb\tc\n")

	url = respond(t, "unused", text(""))
	watchOne(t, url, "limits.exceeded", evilEvent, nil).want(t, exitDone,
		"exceeded  api:\uFFFD]0;x\uFFFD\uFFFDb\uFFFDc\uFFFD31m  5/1m", "watching")
	watchOne(t, url, "limits.exceeded", evilEvent, nil, "--json").want(t, exitDone, evilEvent+"\n", "watching")
}

// Arguments may come from other people by way of a script.
func TestControlCharactersOfArgumentsAreNotShown(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"nope@", "--nope@", "consume k --nope@", "jobs nope@"} {
		i := limiter(t, strings.Fields(strings.ReplaceAll(args, "@", "\x1b[31m"))...)
		i.want(t, exitUsage, "", "limiter: ")
		if strings.Contains(i.err.String(), "\x1b") {
			t.Errorf("%s: %q", args, i.err.String())
		}
	}
}

func TestClosedPipeEndsTheVerbOnce(t *testing.T) {
	ended := 0
	o := &stdout{to: failing{syscall.EPIPE}, end: func() { ended++ }}
	for range 3 {
		if _, err := o.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
	}
	if ended != 1 {
		t.Errorf("ended %d times", ended)
	}
}

// TestColumnsAreAligned in whatever script their cells are written.
func TestColumnsAreAligned(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	table := newTable(&out, "KEY", "USED", "POLICY")
	table.row("api:user:1", 7, "a")
	table.row("api:user:田中", 12, "b")
	table.row("api:user:e\u0301", 100, "c") // an accent of its own takes no place
	table.flush()
	const want = "KEY            USED  POLICY\n" +
		"api:user:1     7     a\n" +
		"api:user:田中  12    b\n" +
		"api:user:e\u0301     100   c\n"
	if out.String() != want {
		t.Errorf("the table is\n%s\nwant\n%s", out.String(), want)
	}
}
