package bus

import (
	"slices"
	"testing"
)

// TestHostsOfURLs in all the forms that nats.go accepts: the certificate of a server must have its configured name.
func TestHostsOfURLs(t *testing.T) {
	t.Parallel()
	got := urlHosts("nats://user:p@ss@one:4222/path, two:4222 ,tls://three,[::1]:4222,[::2],four")
	if want := []string{"one", "two", "three", "::1", "::2", "four"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
