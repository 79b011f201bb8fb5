package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/seed503877ad/limits/internal/storetest"
)

// history is the i-th operation's source of random numbers, the same in every process.
func history(i int) func(n int) int { return rand.New(rand.NewPCG(7, uint64(i))).IntN }

const (
	victimFile  = "LIMITS_TEST_VICTIM_FILE"
	victimAfter = "LIMITS_TEST_VICTIM_AFTER"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(victimFile); path != "" {
		fmt.Fprintln(os.Stderr, victim(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// victim continues the history after the operations that were done, and prints each one that was
// committed, until it is killed.
func victim(path string) error {
	after, err := strconv.Atoi(os.Getenv(victimAfter))
	if err != nil {
		return err
	}
	s, err := Open(context.Background(), Config{Path: path})
	if err != nil {
		return err
	}
	setFoldPolicy(s, storetest.FoldPolicies[after%3])
	m := make(storetest.Model)
	for now := 1; ; now++ {
		if now <= after {
			_ = m.Step(context.Background(), nil, now, history(now))
			continue
		}
		if err := m.Step(context.Background(), s, now, history(now)); err != nil {
			return err
		}
		fmt.Println(now)
	}
}

// TestKilledProcessLosesNoAnsweredOperation kills a process at random moments and opens its file:
// it has every operation that was answered, and the unanswered one completely or not at all.
func TestKilledProcessLosesNoAnsweredOperation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.db")
	m, done := make(storetest.Model), 0
	for range 8 {
		answered := killedAfter(t, path, done, 1+rand.IntN(60))
		for ; done < answered; done++ {
			_ = m.Step(t.Context(), nil, done+1, history(done+1))
		}
		s, err := Open(t.Context(), Config{Path: path})
		if err != nil {
			t.Fatal(err)
		}
		setFoldPolicy(s, neverFold)
		diff, err := m.Diff(t.Context(), s)
		if diff != "" {
			_ = m.Step(t.Context(), nil, done+1, history(done+1))
			done++
			var other string
			if other, err = m.Diff(t.Context(), s); other != "" {
				t.Errorf("after %d operations (-want +got)\n%s\nor one more\n%s", answered, diff, other)
			}
		}
		s.Close()
		if err != nil || t.Failed() {
			t.Fatal(err)
		}
	}
}

// killedAfter runs a process for some operations after those done, kills it, and returns the last
// one that it answered.
func killedAfter(t *testing.T, path string, done, some int) (last int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimFile+"="+path, victimAfter+"="+strconv.Itoa(done))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if last, err = strconv.Atoi(lines.Text()); err != nil {
			t.Error(err)
		}
		if last == done+some {
			_ = cmd.Process.Kill()
		}
	}
	_ = cmd.Wait() // killed
	if last < done+some {
		t.Fatalf("the process ended by itself after %d operations", last-done)
	}
	return last
}
