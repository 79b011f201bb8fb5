package app

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/policy"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// loadPolicies reads the policy file before anything is started, so that a wrong file ends the start at once. The data
// folder is locked already, because the hash key is in it.
func (l *limiter) loadPolicies(ctx context.Context) error {
	if l.Policies == "" {
		return nil
	}
	key, err := l.hashKey()
	if err != nil {
		return err
	}
	l.checkFingerprint(key)
	l.policies, err = policy.NewKeeper(ctx, l.Policies, policy.Options{HashKey: key, Warning: l.WarningThreshold, OnError: l.onError}, l.log,
		l.warnOfUnusedOverrides)
	return pathError("--policies", err)
}

// watchPolicies reloads the file when it changes and on SIGHUP.
func (l *limiter) watchPolicies(context.Context) error {
	if l.policies == nil {
		return nil
	}
	return watchFile(l, "policies", l.Policies, l.policies.Keeper, l.metrics.WatchPolicies, l.policies.ReloadOnDemand)
}

// warnOfUnusedOverrides logs the overrides in force whose limits are not in the policy file: one was renamed or removed, and
// what it limited may be without any limit now. It does so once for each file that is put in force: one that cannot be read is
// tried every second.
func (l *limiter) warnOfUnusedOverrides() {
	if l.policies == nil || l.overrides == nil {
		return
	}
	set, count := l.policies.Current(), 0
	if l.warnedOf.Swap(set) == set {
		return
	}
	var names []string
	for id, n := range l.overrides.Limits(time.Now().UnixMilli()) {
		if !set.HasLimit(id) {
			count += n
			names = append(names, fmt.Sprintf("%s of %s (%d)", id.Name, id.Policy, n))
		}
	}
	if count > 0 {
		slices.Sort(names)
		l.log.Warn("overrides apply to nothing: the policy file does not have their limits; give those their old names back, or "+
			"set the overrides again under the new ones, and delete these", "overrides", count,
			"limits", yamlfile.FirstNames(names, func(name string) string { return name }))
	}
}

// watchFile reloads a file when it changes, and on SIGHUP with reload. export registers the metrics of the file; loaded
// is in Unix seconds.
func watchFile[T any](l *limiter, what, path string, k *yamlfile.Keeper[T],
	export func(report func() (hash string, loaded float64, failures int64)), reload func() error) error {
	export(func() (hash string, loaded float64, failures int64) {
		r := k.Report()
		return r.Hash, float64(r.LoadedAt.UnixMilli()) / 1000, r.Failures
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended, err := k.Watch(ctx)
	if err != nil {
		cancel()
		return err
	}
	hup, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hup, syscall.SIGHUP)
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
				l.log.Info("SIGHUP: reloading the "+what, "file", path)
				_ = reload() // it logs its error
			}
		}
	}()
	l.onStop(what, func(stopping context.Context) error {
		signal.Stop(hup)
		cancel()
		for _, end := range []<-chan struct{}{ended, done} {
			select {
			case <-end:
			case <-stopping.Done(): // a read may hang for ever, for example on a network mount
				return fmt.Errorf("%s is still being read: %w", path, stopping.Err())
			}
		}
		return nil
	})
	return nil
}

// handleHangUps keeps a SIGHUP from ending the process without a drain while it starts or stops, or if there is no
// file to reload.
func (l *limiter) handleHangUps() (stop func()) {
	hup, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hup, syscall.SIGHUP)
	go func() {
		defer close(done)
		for range hup {
			if l.Policies == "" && l.Alerts == "" {
				l.log.Info("SIGHUP: no file to reload")
			}
		}
	}()
	return func() {
		signal.Stop(hup)
		close(hup)
		<-done
	}
}

// policySource returns a nil interface without policies; an interface that holds a nil keeper would not be nil.
func (l *limiter) policySource() bus.Policies {
	if l.policies == nil {
		return nil
	}
	return l.policies
}
