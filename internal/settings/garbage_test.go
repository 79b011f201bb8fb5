package settings

import (
	"math"
	"os"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestCollectLessUnlessGOGCIsSet(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	for told, want := range map[string]int{"": gcPercent, "100": 100} {
		debug.SetGCPercent(100)
		t.Setenv("GOGC", told)
		CollectLess()
		if got := debug.SetGCPercent(100); got != want {
			t.Errorf("with GOGC %q it is %d, want %d", told, got, want)
		}
	}
}

// TestMemoryFitsTheContainer: Go's limit is below that of the container, unless somebody set one.
func TestMemoryFitsTheContainer(t *testing.T) {
	t.Cleanup(func() { debug.SetMemoryLimit(math.MaxInt64) })
	for _, c := range []struct {
		limit memlimit.Provider
		told  string
		want  int64
	}{
		{memlimit.Limit(512 << 20), "", 384 << 20},
		{memlimit.Limit(512 << 20), "1GiB", math.MaxInt64},
		{func() (uint64, error) { return 0, memlimit.ErrNoLimit }, "", math.MaxInt64},
	} {
		debug.SetMemoryLimit(math.MaxInt64)
		t.Setenv("GOMEMLIMIT", c.told)
		if c.told == "" {
			os.Unsetenv("GOMEMLIMIT")
		}
		fitMemory(c.limit)
		if got := debug.SetMemoryLimit(-1); got != c.want {
			t.Errorf("with GOMEMLIMIT %q it is %d, want %d", c.told, got, c.want)
		}
	}
}
