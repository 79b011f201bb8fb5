package app

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
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
	if len(key) > 0 {
		l.log.Info("hash key: workers that share their counters log the same", "fingerprint", fingerprint(key))
	}
	l.policies, err = policy.NewKeeper(ctx, l.Policies, policy.Options{HashKey: key, Warning: l.WarningThreshold, OnError: l.onError}, l.log)
	return wrongPath("--policies", err)
}

// minHashKey is the least length of a hash key in bytes: with 128 bits nobody finds it by trying.
const minHashKey = 16

// checkHashKey holds a key that is set to its least length.
func checkHashKey(key string) error {
	if n := len(key); n > 0 && n < minHashKey {
		return fmt.Errorf("%d bytes are too few; want %d or more, such as from: openssl rand -hex 32", n, minHashKey)
	}
	return nil
}

// hashKey gives the key that was set, or the one of the data folder, or none where workers must share it.
func (l *limiter) hashKey() ([]byte, error) {
	if l.HashKey == "" && l.DatabaseURL == "" {
		return keptHashKey(l.DataDir)
	}
	return []byte(l.HashKey), nil
}

// fingerprint tells hash keys apart, by no more of a hash than that takes.
func fingerprint(key []byte) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("fingerprint of the hash key"))
	return hex.EncodeToString(h.Sum(nil)[:4])
}

// keptHashKey reads the key of the data folder, and makes one where there is none.
func keptHashKey(dir string) ([]byte, error) {
	path := filepath.Join(dir, "hash.key")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeHashKey(dir, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the hash key: %w", err)
	}
	key := strings.TrimSpace(string(data))
	if len(key) < minHashKey {
		return nil, fmt.Errorf("read the hash key: %s has %d bytes; want %d or more: restore it, or remove it for a new one,"+
			" which starts hashed keys anew", path, len(key), minHashKey)
	}
	return []byte(key), nil
}

// makeHashKey writes a key whole or not at all. The folder was taken, so nobody else makes one.
func makeHashKey(dir, path string) ([]byte, error) {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	key := hex.AppendEncode(nil, raw)
	f, err := os.CreateTemp(dir, ".hash.key-*") // with mode 0600
	if err != nil {
		return nil, fmt.Errorf("write the hash key: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(key, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return nil, fmt.Errorf("write the hash key: %w", err)
	}
	return key[:len(key):len(key)], nil
}

// watchPolicies reloads the file when it changes and on SIGHUP.
func (l *limiter) watchPolicies(context.Context) error {
	if l.policies == nil {
		return nil
	}
	return watchFile(l, "policies", l.Policies, l.policies.Keeper, l.metrics.WatchPolicies, l.policies.Ask)
}

// watchFile shows how it stands with a file, and reads it again when it changes, and on SIGHUP with again.
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
