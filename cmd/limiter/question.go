package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// confirm asks before what cannot be undone. What is not done without a yes, undone says, such as "nothing was reset".
func (s *session) confirm(question, undone string) error {
	fmt.Fprintf(s.err, "%s [y/N] ", question)
	answer, err := s.readLine(undone)
	if err != nil {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New(undone)
}

// readLine reads a line; without one it is empty. A signal ends the waiting, and undone says what is not done then.
func (s *session) readLine(undone string) (string, error) {
	return await(s, undone, func() (string, error) { return firstLine(s.in), nil })
}

func firstLine(in io.Reader) string {
	text, _ := bufio.NewReader(in).ReadString('\n') // an end without an answer is no answer
	return text
}

// readSecret is readLine of what a terminal must not show.
func (s *session) readSecret(undone string) (string, error) {
	file, ok := s.in.(*os.File)
	if !ok || !s.inTTY {
		return s.readLine(undone)
	}
	fd := int(file.Fd())
	shows, err := term.GetState(fd)
	if err != nil {
		return "", fmt.Errorf("read the settings of the terminal: %w", err)
	}
	// The read that a signal leaves behind does not set the terminal back.
	defer func() { _ = term.Restore(fd, shows) }()
	text, err := await(s, undone, func() (string, error) {
		secret, _ := term.ReadPassword(fd)
		return string(secret), nil
	})
	if err == nil {
		fmt.Fprintln(s.err) // the one that was typed was not shown either
	}
	return text, err
}

// await waits for read or for a signal, which leaves the read behind for the process to end. undone says what is not done then.
func await[T any](s *session, undone string, read func() (T, error)) (result T, err error) {
	done := make(chan func() (T, error), 1)
	go func() {
		result, err := read()
		done <- func() (T, error) { return result, err }
	}()
	select {
	case outcome := <-done:
		return outcome()
	case <-s.ctx.Done():
		if s.inTTY {
			fmt.Fprintln(s.err) // behind the question
		}
		return result, errors.New("interrupted: " + undone)
	}
}
