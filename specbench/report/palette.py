"""The colours of every plot: Okabe and Ito's palette, without its yellow and with its black last.

Readers with any form of colour blindness can tell them apart.
"""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
