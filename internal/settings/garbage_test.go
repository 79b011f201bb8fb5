package settings

import (
	"runtime/debug"
	"testing"
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
