package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/nats-io/nats.go"
	"golang.org/x/term"

	"github.com/seed503877ad/limits"
)

// openTerminal opens a pseudo terminal: what is written to keyboard is typed at tty, and what tty shows can be read from keyboard.
func openTerminal(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	keyboard = openDevice(t, "/dev/ptmx")
	var number, unlocked int32
	control(t, keyboard, syscall.TIOCGPTN, &number)
	control(t, keyboard, syscall.TIOCSPTLCK, &unlocked)
	return keyboard, openDevice(t, fmt.Sprintf("/dev/pts/%d", number))
}

func control(t *testing.T, f *os.File, request uintptr, value *int32) {
	t.Helper()
	if _, _, err := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(value))); err != 0 {
		t.Fatal(err)
	}
}

func openDevice(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func settingsOf(t *testing.T, tty *os.File) *term.State {
	t.Helper()
	s, err := term.GetState(int(tty.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// verifyAt runs verify at a terminal, and returns when the terminal no longer echoes.
func verifyAt(t *testing.T, ctx context.Context, tty *os.File, url string) (i *invocation, ended <-chan struct{}) {
	t.Helper()
	before := settingsOf(t, tty)
	i = &invocation{in: tty, tty: true, ctx: ctx}
	ended = i.start(t, "API key: ", "verify", "--nats-url", url)
	// Poll, because there is no event for a change of a terminal's settings.
	for deadline := time.Now().Add(time.Minute); reflect.DeepEqual(settingsOf(t, tty), before); {
		if time.Now().After(deadline) {
			t.Fatal("the terminal shows what is typed")
		}
		time.Sleep(time.Millisecond)
	}
	return i, ended
}

func TestTypedAPIKeyIsNotEchoed(t *testing.T) {
	asked := make(chan string, 1)
	url := respond(t, limits.SubjectVerify, func(request string) *nats.Msg {
		asked <- request
		return text(`{"valid":true,"decision":{"allowed":true}}`)("")
	})
	keyboard, tty := openTerminal(t)
	before := settingsOf(t, tty)
	i, ended := verifyAt(t, t.Context(), tty, url)
	if _, err := keyboard.WriteString("lim_secret\n"); err != nil {
		t.Fatal(err)
	}
	<-ended
	i.want(t, exitDone, "valid\n", "API key: \n")
	if got := <-asked; !strings.Contains(got, `"lim_secret"`) {
		t.Errorf("asked %s", got)
	}
	if !reflect.DeepEqual(settingsOf(t, tty), before) {
		t.Error("the terminal is not set back")
	}
	if _, err := tty.WriteString("the end\n"); err != nil {
		t.Fatal(err)
	}
	for shown := bufio.NewScanner(keyboard); shown.Scan(); {
		if strings.Contains(shown.Text(), "secret") {
			t.Errorf("the terminal shows %q", shown.Text())
		}
		if shown.Text() == "the end" {
			return
		}
	}
	t.Error("the terminal does not show the end")
}

func TestInterruptRestoresTheTerminal(t *testing.T) {
	keyboard, tty := openTerminal(t)
	before := settingsOf(t, tty)
	ctx, interrupt := context.WithCancel(t.Context())
	i, ended := verifyAt(t, ctx, tty, "nats://127.0.0.1:1")
	interrupt()
	<-ended
	i.want(t, exitError, "", "API key: \nlimiter: interrupted: no API key was verified\n")
	if !reflect.DeepEqual(settingsOf(t, tty), before) {
		t.Error("the terminal is not set back")
	}
	if _, err := keyboard.WriteString("\n"); err != nil { // ends the read that was left behind
		t.Fatal(err)
	}
}

// TestASignalEndsTheWaitForAFile that is a pipe, which nobody may ever write to.
func TestASignalEndsTheWaitForAFile(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	for _, verb := range []string{"policies validate", "policies explain", "alerts validate", "alerts preview"} {
		path := filepath.Join(t.TempDir(), "pipe")
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		i := &invocation{ctx: ctx}
		i.run(t, append(strings.Fields(verb), path)...).want(t, exitError, "", "limiter: interrupted: "+path+" was not read to the end\n")
		writer, err := os.OpenFile(path, os.O_RDWR, 0) // ends the read that was left behind
		if err != nil {
			t.Fatal(err)
		}
		_ = writer.Close()
	}
}
