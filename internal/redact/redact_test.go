package redact

import "testing"

func TestURLs(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"nats://u:p@h:1,tls://token@h:2": "nats://***@h:1,tls://***@h:2",
		"u:p@h:1":                        "***@h:1",
		`parse "nats://u:p%@h": bad`:     `parse "nats://***@h": bad`,
		"nats://h:1":                     "nats://h:1",
	} {
		if got := URLs(in); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
}
