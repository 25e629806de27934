package key

import (
	_ "os"
	_ "pgregory.net/rapid"
	_ "testing"
)
