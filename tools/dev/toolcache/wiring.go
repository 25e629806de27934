package toolcache

import (
	"os"
	"time"
)

// Console returns a Progress for a file: on a terminal, it updates one line every second, otherwise it writes a line every five seconds. It is
// meant for the standard error of a command and lasts as long as the process.
func Console(file *os.File) *Progress {
	interval, terminal := 5*time.Second, false
	if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		interval, terminal = time.Second, true
	}

	return &Progress{Out: file, Terminal: terminal, Now: time.Now, Ticks: time.NewTicker(interval).C}
}
