package quickconn

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// TestTryWriteDoesNotWait: it writes what there is room for, and returns how much that is.
func TestTryWriteDoesNotWait(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) { tryWrite(t, network) })
	}
}

func tryWrite(t *testing.T, network string) {
	t.Parallel()
	wrapped, plain := pair(t, network)
	try := wrapped.(Trier)
	if err := wrapped.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil { // applies only to writes that wait
		t.Fatal(err)
	}
	piece := make([]byte, 1<<20)
	_, _ = rand.Read(piece)
	var sent []byte
	for {
		n, err := try.TryWrite(piece)
		if err != nil {
			t.Fatal(err)
		}
		if sent = append(sent, piece[:n]...); n < len(piece) {
			break
		}
	}
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(plain, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%v, equal: %v", err, bytes.Equal(got, sent))
	}
	_ = wrapped.Close()
	if _, err := try.TryWrite(piece); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestWaited: a read that had to wait is reported once.
func TestWaited(t *testing.T) {
	t.Parallel()
	wrapped, plain := pair(t, "tcp")
	try := wrapped.(Trier)
	read := func() (waited bool) {
		t.Helper()
		if _, err := io.ReadFull(wrapped, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return try.Waited()
	}
	// The write is to come after the read has begun. Nothing tells when that is, and on a busy machine it takes long.
	for after, waited := 10*time.Millisecond, false; !waited; after *= 4 {
		if after > time.Minute {
			t.Fatal("no read had to wait")
		}
		time.AfterFunc(after, func() { _, _ = plain.Write([]byte("ab")) })
		if waited = read(); waited && try.Waited() {
			t.Error("it is told twice")
		}
		if read() {
			t.Error("a read that has its byte had to wait")
		}
	}
}
