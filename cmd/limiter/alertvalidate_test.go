package main

import (
	"path/filepath"
	"strings"
	"testing"
)

const alertsYAML = `channels:
  - name: ops
    webhook: {url: "https://example.com/hook", secrets: "env:LIMITER_TEST_NO_SUCH_SECRET"}
rules:
  - name: heavy
    threshold: {denials: 20, within: 10m}
    channels: [ops, nats]
`

func TestAlertsValidate(t *testing.T) {
	t.Parallel()
	good := written(t, "alerts.yaml", alertsYAML)
	limiter(t, "alerts", "validate", good).want(t, exitDone, ": valid: 1 rule, 3 channels, hash ", "")
	i := limiter(t, "alerts", "validate", good, "--secrets")
	i.want(t, exitError, "", good+`:3: channels[0].webhook.secrets: environment variable LIMITER_TEST_NO_SUCH_SECRET is not set`)
	bad := written(t, "alerts.yaml", strings.ReplaceAll(strings.Replace(alertsYAML, "within: 10m", "within: 10x", 1), "channels: [ops", "chanels: [ops"))
	i = limiter(t, "alerts", "validate", bad)
	i.want(t, exitError, "", bad+`:6: rules[0].threshold.within: invalid duration "10x"`)
	i.want(t, exitError, "", bad+`:7: rules[0].chanels: unknown field "chanels" (did you mean "channels"?)`)
	i.want(t, exitError, "", "2 mistakes")
	inside := written(t, "alerts.yaml", strings.Replace(alertsYAML, "https://example.com", "http://10.0.0.1", 1))
	limiter(t, "alerts", "validate", inside).want(t, exitDone, `note: channel "ops" cannot work: refused: 10.0.0.1 is not a public`, "")
	if i := limiter(t, "alerts", "validate", inside, "--alerts-allow", "10.0.0.0/8"); strings.Contains(i.out.String(), "note:") {
		t.Errorf("a channel that is allowed has a note: %s", i.out.String())
	}
	short := written(t, "alerts.yaml", strings.Replace(alertsYAML, "within: 10m", "within: 9s", 1))
	limiter(t, "alerts", "validate", short).want(t, exitDone, `: it counts denials within 9s, but a counter reports those of 10s in one event`, "")
	odd := written(t, "a\x1b[31m.yaml", "x: 1\n")
	if i := limiter(t, "alerts", "validate", odd); !strings.Contains(i.err.String(), "\ufffd[31m.yaml:1: ") || strings.Contains(i.err.String(), "\x1b") {
		t.Errorf("the terminal obeys the name of a file: %q", i.err.String())
	}
	limiter(t, "alerts", "validate", inside, "--alerts-allow", "10.x").want(t, exitUsage, "", "--alerts-allow")
	limiter(t, "alerts", "validate", filepath.Join(t.TempDir(), "none")).want(t, exitError, "", "no such file")
}
