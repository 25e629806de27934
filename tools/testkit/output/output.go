// Package output stores what a program writes while a test reads it.
package output

import (
	"bytes"
	"sync"
)

// Buffer stores everything that is written to it. The zero value is empty. It is safe for concurrent use, and must not
// be copied.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.text.Write(p) //nolint:wrapcheck // it is always nil
}

// String returns everything that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.text.String()
}
