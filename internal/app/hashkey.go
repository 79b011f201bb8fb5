package app

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

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
		return keptHashKey(l.DataDir, l.log)
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
func keptHashKey(dir string, log *slog.Logger) ([]byte, error) {
	path := filepath.Join(dir, "hash.key")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := makeHashKey(dir, path)
		if err == nil {
			tellMade(dir, path, log)
		}
		return key, err
	}
	if err != nil {
		return nil, fmt.Errorf("read the hash key: %w", err)
	}
	if info, err := os.Stat(path); err == nil && runtime.GOOS != "windows" && info.Mode()&0o077 != 0 {
		log.Warn("the hash key is open to others, who can find by trying what was hashed; chmod 600 it", "file", path,
			"mode", info.Mode().Perm().String())
	}
	key := strings.TrimSpace(string(data))
	if len(key) < minHashKey {
		return nil, fmt.Errorf("read the hash key: %s has %d bytes; want %d or more: restore it, or remove it for a new one,"+
			" which starts hashed keys anew", path, len(key), minHashKey)
	}
	return []byte(key), nil
}

// tellMade tells of a new key. Where the store has been used before, a key may have been lost.
func tellMade(dir, path string, log *slog.Logger) {
	if _, err := os.Stat(filepath.Join(dir, "limits.db")); err != nil {
		log.Info("hash key made; back it up", "file", path)
		return
	}
	log.Warn("hash key made, as there was none beside a store that is older: hashed counters start from zero; if the key was lost, "+
		"stop, and restore it", "file", path)
}

// makeHashKey writes a key whole or not at all. The folder was taken, so nobody else makes one.
func makeHashKey(dir, path string) ([]byte, error) {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	key := hex.AppendEncode(nil, raw)
	if err := writeWhole(dir, path, append(key, '\n')); err != nil {
		return nil, fmt.Errorf("write the hash key: %w", err)
	}
	return key[:len(key):len(key)], nil
}

// writeWhole writes a file of the data folder whole or not at all, for nobody else to read.
func writeWhole(dir, path string, data []byte) error {
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}

// holdHashKey tells the fingerprint of the key, and holds it against the one that the counters of the data folder were made with.
// With PostgreSQL nothing of the kind is kept: there the logs of the workers are compared.
func (l *limiter) holdHashKey(key []byte) {
	if len(key) == 0 {
		return
	}
	now := fingerprint(key)
	l.log.Info("hash key: workers that share their counters log the same", "fingerprint", now)
	if l.DatabaseURL != "" {
		return
	}
	path := filepath.Join(l.DataDir, "hash.fingerprint")
	data, err := os.ReadFile(path)
	before := strings.TrimSpace(string(data))
	switch {
	case err == nil && before == now:
		return
	case err == nil:
		l.log.Error("the hash key is another than before: hashed counters start from zero; if that is a mistake, stop, and restore the key",
			"fingerprint", now, "before", before)
	case !errors.Is(err, fs.ErrNotExist):
		l.log.Warn("read the fingerprint of the hash key: whether it is the same as before is not known", "error", err)
	}
	// The new one is kept: from here on it is the key that counters are made with, and going back would start them anew as well.
	if err := writeWhole(l.DataDir, path, []byte(now+"\n")); err != nil {
		l.log.Warn("write the fingerprint of the hash key: the next start does not notice another", "error", err)
	}
}
