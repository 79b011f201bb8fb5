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
	wrapped, plain := pair(t, "tcp")
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
	time.AfterFunc(10*time.Millisecond, func() { _, _ = plain.Write([]byte("ab")) }) // after the read has begun; nothing tells when that is
	for _, waited := range []bool{true, false} {                                     // the first read waits for both bytes, the second has its byte
		if _, err := io.ReadFull(wrapped, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if got := try.Waited(); got != waited {
			t.Errorf("waited: %t, want %t", got, waited)
		}
	}
	if try.Waited() {
		t.Error("it is told twice")
	}
}
