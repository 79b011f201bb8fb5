package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// hashing is a policy file whose key is hashed.
func hashing(limit int) string {
	return fmt.Sprintf("policies:\n  - name: p\n    limits:\n      - {name: l, key: \"user:{user|hash}\", limit: %d, window: 1h}\n", limit)
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	rewrite(t, path, text)
	return path
}

func rewrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// hangUp sends this process a SIGHUP.
func hangUp(t *testing.T) {
	t.Helper()
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Signal(syscall.SIGHUP)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestPoliciesAreReloaded when the file changes, with SIGHUP and without.
func TestPoliciesAreReloaded(t *testing.T) {
	o := options(t)
	o.Policies = writeFile(t, hashing(3))
	s := running(t, Run, o)
	client, log := limits.NewClient(s.connect(t), limits.Timeout(patience)), s.log
	want := func(limit int, key string) string {
		t.Helper()
		log.await(t, "hash:"+yamlfile.Hash([]byte(hashing(limit)))) // of the line that says it is loaded
		r, err := client.Check(t.Context(), limits.Request{Policy: "p", Attributes: map[string]string{"user": "7"}})
		if err != nil || r.Limit != int64(limit) || !strings.HasPrefix(r.Key, key) {
			t.Fatalf("%+v, %v; want the limit %d of %s\n%s", r, err, limit, key, log)
		}
		return r.Key
	}
	key := want(3, "user:")
	rewrite(t, o.Policies, hashing(4))
	hangUp(t)
	want(4, key)
	rewrite(t, o.Policies, hashing(5))
	want(5, key)
	p, err := client.Policies(t.Context(), limits.PoliciesRequest{})
	if err != nil || len(p.Policies) != 1 || p.Hash == "" {
		t.Errorf("%+v %v", p, err)
	}
	_, metrics := s.get(t, "/metrics")
	for _, want := range []string{`limits_policies_info{hash="` + p.Hash + `"} 1`, "limits_policies_loaded_timestamp_seconds 1", "limits_policies_reload_failures_total "} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	holdKey(t, o.DataDir)
	if kept, err := os.ReadFile(filepath.Join(o.DataDir, "hash.key")); err != nil || strings.Contains(log.String(), string(bytes.TrimSpace(kept))) {
		t.Errorf("the hash key is in the log: %v", err)
	}
}

func TestInvalidPoliciesFailTheStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(t *testing.T, o *Options)
		want string
	}{
		"wrong file": {func(t *testing.T, o *Options) { o.Policies = writeFile(t, "policies: [") }, "limits.yaml:1: invalid YAML"},
		"no file":    {func(t *testing.T, o *Options) { o.Policies = filepath.Join(t.TempDir(), "none") }, "no such file"},
		"PostgreSQL without a hash key": {func(t *testing.T, o *Options) {
			o.Policies, o.DatabaseURL = writeFile(t, hashing(1)), "postgres://127.0.0.1:1/x"
		}, "needs a hash key; start with --hash-key or HASH_KEY, the same on all workers"},
		"short hash key":              {func(t *testing.T, o *Options) { o.Policies, o.HashKey = writeFile(t, hashing(1)), "secret" }, "--hash-key: 6 bytes is too short"},
		"short hash key, no policies": {func(t *testing.T, o *Options) { o.HashKey = "secret" }, "--hash-key: 6 bytes is too short"},
		"damaged hash key": {func(t *testing.T, o *Options) {
			o.Policies = writeFile(t, hashing(1))
			if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
				t.Fatal(err)
			}
			rewrite(t, filepath.Join(o.DataDir, "hash.key"), "x\n")
		}, "hash.key has 1 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(t)
			c.set(t, &o)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := Run(ctx, o, slog.New(slog.DiscardHandler))
			if err == nil || !strings.Contains(err.Error(), c.want) || o.HashKey != "" && strings.Contains(err.Error(), o.HashKey) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}

// TestStopDoesNotWaitForAHangingRead: the stop comes while a file is being read, as on a network mount that hangs.
func TestStopDoesNotWaitForAHangingRead(t *testing.T) {
	path := writeFile(t, "first")
	reading, release := make(chan struct{}, 10), make(chan struct{})
	defer close(release)
	k, err := yamlfile.NewKeeper(t.Context(), yamlfile.Config[string]{Path: path, What: "texts", Log: slog.New(slog.DiscardHandler),
		Parse: func(_ string, data []byte) (*string, error) {
			text := string(data)
			if text != "first" {
				reading <- struct{}{}
				<-release
			}
			return &text, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	l := &limiter{log: slog.New(slog.DiscardHandler)}
	if err := watchFile(l, "texts", path, k, func(func() (string, float64, int64)) {}, k.Reload); err != nil {
		t.Fatal(err)
	}
	rewrite(t, path, "second")
	<-reading
	stopping, cancel := context.WithCancel(t.Context())
	cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- l.stops[0].run(stopping) }()
	select {
	case err := <-stopped:
		if err == nil || !strings.Contains(err.Error(), "still being read") {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the stop waits for the file")
	}
}

// TestOverridesOfRenamedLimitsAreTold: they apply to nothing, and who had them may be without any limit.
func TestOverridesOfRenamedLimitsAreTold(t *testing.T) {
	t.Parallel()
	file := func(policy string) string {
		return "policies:\n  - {name: " + policy + ", limits: [{name: month, key: \"quota:{user}\", limit: unlimited, window: month}]}\n"
	}
	o := options(t)
	o.Policies = writeFile(t, file("big"))
	s := startOne(t, o, Run)
	client := limits.NewClient(s.connect(t), limits.Timeout(patience))
	for i, expires := range []int64{0, time.Now().Add(time.Hour).UnixMilli()} {
		r := limits.SetOverrideRequest{OverrideID: limits.OverrideID{Policy: "big", Name: "month", Subject: fmt.Sprint("quota:", i)},
			Limit: 10, ExpiresAt: expires, Reason: "contract"}
		if set, err := client.SetOverride(t.Context(), r); err != nil || set.Override.Unused {
			t.Fatal(set, err)
		}
	}
	rewrite(t, o.Policies, file("big-v2"))
	s.log.await(t, "limitsGone:big/month limitsNew:big-v2/month")
	s.log.await(t, "limits:month of big (2) overrides:2")
	list, err := client.ListOverrides(t.Context(), limits.ListOverridesRequest{})
	if err != nil || len(list.Overrides) != 2 || !list.Overrides[0].Unused || !list.Overrides[1].Unused {
		t.Errorf("%+v, %v", list, err)
	}
	if err := s.stopOne(t); err != nil {
		t.Fatal(err)
	}
	running(t, Run, o).log.await(t, "limits:month of big (2) overrides:2")
}

// TestOverridesAreToldOncePerFile: a file that cannot be loaded changes nothing. One that is missing is tried every second, and the
// log would have a line each time.
func TestOverridesAreToldOncePerFile(t *testing.T) {
	t.Parallel()
	file := func(policy string) string {
		return "policies:\n  - {name: " + policy + ", limits: [{name: a, key: k, limit: 1, window: 1m}]}\n"
	}
	o := options(t)
	o.Policies = writeFile(t, file("old"))
	s := startOne(t, o, Run)
	client := limits.NewClient(s.connect(t), limits.Timeout(patience))
	_, err := client.SetOverride(t.Context(), limits.SetOverrideRequest{OverrideID: limits.OverrideID{Policy: "old", Name: "a", Subject: "k"},
		Limit: 10, Reason: "contract"})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ text, logged string }{
		{file("new"), "limitsGone:old/a limitsNew:new/a"},
		{"policies: []\n", "policies: is empty"},
		{file("newer"), "limitsGone:new/a limitsNew:newer/a"},
	} {
		rewrite(t, o.Policies, step.text)
		s.log.await(t, step.logged)
	}
	if err := s.stopOne(t); err != nil {
		t.Fatal(err)
	}
	if told := strings.Count(s.log.String(), "limits:a of old (1)"); told != 2 {
		t.Errorf("told %d times of the override; want once for each of the two files that were put in force\n%s", told, s.log)
	}
}
