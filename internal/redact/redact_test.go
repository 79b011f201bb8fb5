package redact

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

func TestURLs(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"nats://u:p@h:1,tls://token@h:2": "nats://***@h:1,tls://***@h:2",
		"u:p@h:1":                        "***@h:1",
		"u:12/p@h:1":                     "***@h:1",
		`parse "nats://u:p%@h": bad`:     `parse "nats://***@h": bad`,
		"nats://h:1":                     "nats://h:1",
	} {
		if got := URLs(in); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
}

func TestServers(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"nats://u:p@h:1,tls://token@h:2": "nats://***@h:1,tls://***@h:2",
		"u:p@h:1, h:2":                   "***@h:1, h:2",
		"nats://[::1]:4222":              "nats://[::1]:4222",
		"nats://u:se/cret@h":             "***",
		"nats://u:se,cret@h":             "***",
		`nats://u:se"cret@h`:             "***",
		"u:se/cret@h":                    "***",
		"nats://u:secret":                "***",
		"wss://u:p@h:1":                  "wss://***@h:1",
		"http://u:p@h:1":                 "***",
		"u:p@h:":                         "***@h:", // nats.go adds the port
		"nats://u:p@[::1]":               "nats://***@[::1]",
		"nats://u:p@::1:4222":            "***",
		"nats://u:p@h:0":                 "***",
		"nats://u:p@h":                   "nats://***@h",
		"nats://u:p@h:1,, h:2,":          "nats://***@h:1,, h:2,", // nats.go skips what is empty
		"nats://u:p@:4222":               "***",
		"":                               "",
		"nats://u:p@h:65535":             "nats://***@h:65535",
		"nats://u:p@h:65536":             "***",
	} {
		if got := Servers(in); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
}

func TestErrorHidesMalformedURL(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"nats://u:secret/x@h:1", "nats://u:%sec@h", "nats://u:secret", `nats://u:sec"ret@h`} {
		_, err := url.Parse(in)
		if got := Error(fmt.Errorf("connect: %w", err)); strings.Contains(got, "sec") || !strings.Contains(got, "malformed") {
			t.Errorf("%s: %s", in, got)
		}
	}
	if got := Error(errors.New("dial u:p@h: refused")); got != "dial ***@h: refused" {
		t.Error(got)
	}
	asked := &url.Error{Op: "Post", URL: "https://u:p@h/hook", Err: errors.New("refused")}
	if got := Error(asked); got != `Post "https://***@h/hook": refused` {
		t.Error(got)
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                 "",
		"a\n\tb\x00":       "a  b ",
		"a\xff":            "a?",
		"ääää":             "ääää",
		"äääää":            "ää…", // letters are not cut in half
		"twelve bytes":     "twelv…",
		"\u2028\u202e(ab)": "  (ab)",
	} {
		if got := Line(in, 8); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}
