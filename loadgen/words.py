"""Common English words: nearly all tokenizers make one token of each, with the space before it."""

from __future__ import annotations

_TEXT = """
the and that have with this from they which one would all there their what out about who get make can like time
just him know take people into year your good some could them see other than then now look only come over think
also back after use two how our work first well way even new want because any these give day most find here thing
many life tell very when down should call world school still try last ask need feel three state never become
between high really something most another family own leave put old while mean keep student why let great same big
group begin seem country help talk where turn problem every start hand might show part against place such again few
case week company system each right program hear question during play run small number off always move night live
point believe hold today bring happen next without before large million must home under water room write mother
area national money story young fact month different lot study book eye job word though business issue side kind
four head far black long both little house yes since provide service around friend important father sit away until
power hour game often line end among ever stand bad lose member pay law meet car city almost include continue set
later community much name five once white least president learn real change team minute best several idea kid body
information nothing ago lead social understand whether watch together follow parent stop face anything create public
already speak others read level allow add office spend door health person art sure war history party within grow
result open morning walk reason low win research girl guy early food moment himself air teacher force offer
"""

WORDS: tuple[str, ...] = tuple(sorted(set(_TEXT.split())))
"""Each once."""
