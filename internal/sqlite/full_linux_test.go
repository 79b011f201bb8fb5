package sqlite

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/usage"
)

// redirect makes descriptors of this process refer to another file.
func redirect(t *testing.T, fds []int, to string) {
	t.Helper()
	f, err := os.OpenFile(to, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, fd := range fds {
		if err := syscall.Dup3(int(f.Fd()), fd, syscall.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
}

// descriptorsOf returns this process's descriptors of a file.
func descriptorsOf(t *testing.T, path string) (fds []int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == path {
			fd, _ := strconv.Atoi(e.Name())
			fds = append(fds, fd)
		}
	}
	if len(fds) == 0 {
		t.Fatalf("%s is not open", path)
	}
	return fds
}

// TestFullDiskAtCommit: SQLite has not written the commit, so its outcome is known. Memory is
// unchanged, and a transaction that is repeated when there is room is committed once.
func TestFullDiskAtCommit(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "limits.db")
	s := open(t, Config{Path: path})
	update(t, s, one, set("1"))
	// With an empty log, nothing is read from it.
	s.writeLock <- struct{}{}
	_, err = s.conn.ExecContext(t.Context(), `PRAGMA wal_checkpoint(TRUNCATE)`)
	<-s.writeLock
	if err != nil {
		t.Fatal(err)
	}
	count := []usage.Count{{ID: usage.ID{Key: "a"}, At: 60_000, Allowed: 1}}
	log := descriptorsOf(t, path+"-wal")
	redirect(t, log, "/dev/full")
	for name, err := range map[string]error{
		"a decision": s.Update(t.Context(), one, set("2")), "usage": s.AddUsage(t.Context(), count),
	} {
		if e, ok := errors.AsType[*driver.Error](err); !ok || e.Code() != codes.SQLITE_FULL || errors.Is(err, engine.ErrCommitUnknown) {
			t.Errorf("%s: %v; want that the disk is full, without doubt", name, err)
		}
		if told := s.Advice(err); !strings.Contains(told, "full") {
			t.Errorf("%s: the advice is %q", name, told)
		}
	}
	redirect(t, log, path+"-wal")
	if err := s.AddUsage(t.Context(), count); err != nil {
		t.Error(err)
	}
	if n := query(t, s, `SELECT sum(allowed) FROM usage_counts`); n != 1 {
		t.Errorf("usage counts %d; want 1", n)
	}
	if got := state(t, s, "a"); got != "1" {
		t.Errorf("the counter is %s; want 1, as before", got)
	}
}

// onFullDisk is set in a process whose files may not grow, to the file that it opens.
const onFullDisk = "LIMITS_TEST_FULL_DISK"

// TestStartOnFullDiskErrorSaysWhatToDo: SQLite fails on the size of the index of its log, with the
// I/O error 4874. To a process, a limit on the size of its files is like a full disk.
func TestStartOnFullDiskErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	if path := os.Getenv(onFullDisk); path != "" {
		signal.Ignore(syscall.SIGXFSZ)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 16 << 10, Max: 16 << 10}); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), Config{Path: path})
		t.Fatalf("it says: %v", err)
	}
	path := filepath.Join(t.TempDir(), "limits.db")
	s, err := Open(t.Context(), Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStartOnFullDiskErrorSaysWhatToDo$")
	child.Env = append(os.Environ(), onFullDisk+"="+path)
	said, err := child.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "the disk is full: free some space, and restart the limiter") {
		t.Errorf("%v\n%s", err, said)
	}
}
