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

// minHashKey is the least length of a hash key in bytes: 128 bits cannot be guessed by trying.
const minHashKey = 16

// trimHashKey removes white space around a key. hash.key ends with a line break, and the same text in HASH_KEY is the same
// key.
func trimHashKey(text string) string { return strings.TrimSpace(text) }

// checkHashKey returns an error for a key that is set and too short.
func checkHashKey(key string) error {
	if n := len(trimHashKey(key)); key != "" && n < minHashKey {
		return fmt.Errorf("%d bytes is too short; want %d or more, such as the output of: openssl rand -hex 32", n, minHashKey)
	}
	return nil
}

// hashKey returns the key that is set; with SQLite and none set, the one in the data folder; otherwise none, because
// workers on PostgreSQL must share a key.
func (l *limiter) hashKey() ([]byte, error) {
	if l.HashKey == "" && l.DatabaseURL == "" {
		return readOrMakeHashKey(l.DataDir, l.log)
	}
	return []byte(trimHashKey(l.HashKey)), nil
}

// fingerprint returns 4 bytes of a hash in hex: enough to tell hash keys apart, too little to find one by it.
func fingerprint(key []byte) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("fingerprint of the hash key"))
	return hex.EncodeToString(h.Sum(nil)[:4])
}

// readOrMakeHashKey reads the key in the data folder, or makes one if there is none.
func readOrMakeHashKey(dir string, log *slog.Logger) ([]byte, error) {
	path := filepath.Join(dir, "hash.key")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeHashKey(path, log)
	}
	if err != nil {
		return nil, fmt.Errorf("read the hash key: %w", err)
	}
	if info, err := os.Stat(path); err == nil && runtime.GOOS != "windows" && info.Mode()&0o077 != 0 {
		log.Warn("the hash key file is accessible to others, who can use it to guess what was hashed; chmod 600 it", "file", path,
			"mode", info.Mode().Perm().String())
	}
	key := trimHashKey(string(data))
	if len(key) < minHashKey {
		return nil, fmt.Errorf("read the hash key: %s has %d bytes; want %d or more; restore it, or remove it to generate a new one,"+
			" with which hashed counters start from zero", path, len(key), minHashKey)
	}
	return []byte(key), nil
}

// makeHashKey makes a key and writes its file. The data folder is locked, so no other process makes one. If there is a store
// already, the earlier key may have been lost.
func makeHashKey(path string, log *slog.Logger) ([]byte, error) {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails
	key := hex.EncodeToString(raw)
	if err := writeFileAtomic(path, key+"\n"); err != nil {
		return nil, fmt.Errorf("write the hash key: %w", err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), databaseName)); err != nil {
		log.Info("hash key created; back it up", "file", path)
	} else {
		log.Warn("hash key created, because the existing store had none: hashed counters start from zero; if the key was lost, "+
			"stop and restore it", "file", path)
	}
	return []byte(key), nil
}

// writeFileAtomic writes a file completely or not at all, readable by its owner only.
func writeFileAtomic(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}

// checkFingerprint logs the fingerprint of the key. With SQLite it also compares it with that of the last start, which is
// kept in the data folder, and logs an error if it differs. With PostgreSQL the logs of the workers are to be compared.
func (l *limiter) checkFingerprint(key []byte) {
	if len(key) == 0 {
		return
	}
	now := fingerprint(key)
	l.log.Info("hash key loaded; workers that share counters must log the same fingerprint", "fingerprint", now)
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
		l.log.Error("the hash key has changed: hashed counters start from zero; if that is a mistake, stop and restore the old key",
			"fingerprint", now, "before", before)
	case !errors.Is(err, fs.ErrNotExist):
		l.log.Warn("cannot read the hash key fingerprint: not known whether the key has changed", "error", err)
	}
	// Keep the new fingerprint: from now on counters are made with this key, and a return to the old one would start them
	// from zero as well.
	if err := writeFileAtomic(path, now+"\n"); err != nil {
		l.log.Warn("cannot write the hash key fingerprint: the next start will not notice a changed key", "error", err)
	}
}
