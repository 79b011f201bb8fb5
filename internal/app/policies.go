package app

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/seed503877ad/limits/internal/bus"
	"github.com/seed503877ad/limits/internal/policy"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// loadPolicies reads the policy file, before anything else starts: a wrong one ends the start at once. The data folder was taken
// already, because the key of hashed keys is in it.
func (l *limiter) loadPolicies(ctx context.Context) error {
	if l.Policies == "" {
		return nil
	}
	key, err := l.hashKey()
	if err != nil {
		return err
	}
	l.holdHashKey(key)
	l.policies, err = policy.NewKeeper(ctx, l.Policies, policy.Options{HashKey: key, Warning: l.WarningThreshold, OnError: l.onError}, l.log)
	return wrongPath("--policies", err)
}

// watchPolicies reloads the file when it changes and on SIGHUP.
func (l *limiter) watchPolicies(context.Context) error {
	if l.policies == nil {
		return nil
	}
	return watchFile(l, "policies", l.Policies, l.policies.Keeper, l.metrics.WatchPolicies, l.policies.ReloadOnDemand)
}

// watchFile shows the state of a file, and reads it again when it changes, and on SIGHUP with again.
func watchFile[T any](l *limiter, what, path string, k *yamlfile.Keeper[T],
	show func(report func() (hash string, loaded float64, failures int64)), again func() error) error {
	show(func() (hash string, loaded float64, failures int64) {
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
				l.log.Info("SIGHUP: reading the "+what, "file", path)
				_ = again() // logged
			}
		}
	}()
	l.onStop(what, func(stopping context.Context) error {
		signal.Stop(hup)
		cancel()
		for _, end := range []<-chan struct{}{ended, done} {
			select {
			case <-end:
			case <-stopping.Done(): // a read may hang for ever, as on a network mount
				return fmt.Errorf("%s is still being read: %w", path, stopping.Err())
			}
		}
		return nil
	})
	return nil
}

// surviveHangUps keeps a SIGHUP from ending the process at once, without a drain: while it starts or stops, and where there
// is no file to read again.
func (l *limiter) surviveHangUps() (stop func()) {
	hup, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hup, syscall.SIGHUP)
	go func() {
		defer close(done)
		for range hup {
			if l.Policies == "" && l.Alerts == "" {
				l.log.Info("SIGHUP: there is no file to read again")
			}
		}
	}()
	return func() {
		signal.Stop(hup)
		close(hup)
		<-done
	}
}

// policySource is nil without policies, which a nil keeper in an interface is not.
func (l *limiter) policySource() bus.Policies {
	if l.policies == nil {
		return nil
	}
	return l.policies
}
